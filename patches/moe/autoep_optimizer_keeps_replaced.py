"""AutoEP with the script's own optimizer, or with a list as model_parameters: router and experts are not trained.

Why: deepspeed.initialize replaces the model's MoE blocks, and so their parameters. An optimizer made before, such as
    Trainer's, and a list given as model_parameters still hold the old ones. Without ZeRO, or after zero.Init, nothing
    says so; ZeRO-1/2 ends with "None of the param groups are marked as MoE", ZeRO-3 with "no attribute
    'partition_numel'".
How: in each group the new parameters take the place of those that they were made of. If those of one new parameter are
    in several groups, or some of them in none, or the optimizer has state for one, nothing is changed, and rank 0 warns
    once. ZeRO-1/2 still takes the script's optimizer only if it has groups marked as MoE.
Changes: the router and the experts are trained. The optimizer state in a checkpoint written without the patch is
    refused, as it is of other parameters.
Workaround: Scripts put the optimizer into the config, and pass no list as model_parameters. You can keep it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

from .._warn_once import warn_once

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"


class Block(NamedTuple):
    """A block before AutoEP replaces it, by identities: all of its parameters, and those that make up each new one."""

    name: str
    old: set[int]
    made_of: dict[str, list[int]]


def blocks_of(model: Any, specs: Iterable[Any]) -> list[Block]:
    from deepspeed.moe.ep_repack import _get_expert_weight  # type: ignore[import-not-found,unused-ignore]

    found = []
    for spec in specs:
        block = model.get_submodule(spec.moe_module_name)
        router, experts = getattr(block, spec.router_name), getattr(block, spec.experts_name)
        names = {"w1": spec.expert_w1_name, "w2": spec.expert_w2_name, "w3": spec.expert_w3_name or spec.expert_w1_name}
        if spec.expert_storage == "fused_3d":
            made_of = {new: [id(getattr(experts, name))] for new, name in names.items()}
        else:  # all experts, not only this rank's: so that ranks agree
            made_of = {new: [id(_get_expert_weight(each, name)) for each in experts] for new, name in names.items()}
        for name in ("weight", "bias", "e_score_correction_bias"):
            made_of[name] = [id(getattr(router, name, None))]
        found.append(Block(spec.moe_module_name, {id(each) for each in block.parameters()}, made_of))
    return found


def follow_replacement(engine: Any, model: Any, model_parameters: Any) -> None:
    blocks = engine.__dict__.pop("_dsfix_blocks", ())
    if not blocks:
        return
    optimizer = engine.client_optimizer
    if hasattr(optimizer, "param_groups"):
        _follow(model, blocks, optimizer.param_groups, getattr(optimizer, "state", ()))
    elif isinstance(model_parameters, list):
        in_groups = any(isinstance(each, dict) for each in model_parameters)
        groups = model_parameters if in_groups else [{"params": model_parameters}]
        if all(isinstance(each, dict) and isinstance(each.get("params"), list) for each in groups):
            _follow(model, blocks, groups, ())


def _follow(model: Any, blocks: Iterable[Block], groups: list[dict[str, Any]], state: Any) -> None:
    group_of = {id(each): number for number, group in enumerate(groups) for each in group["params"]}
    gone = set().union(*(block.old for block in blocks)) - {id(each) for each in model.parameters()}
    if gone.isdisjoint(group_of):
        return
    new: dict[int, list[Any]] = {}
    clear = not any(id(each) in gone for each in state)
    for block in blocks:
        layer = model.get_submodule(block.name)
        for part in (layer.router, layer.experts):
            for name, parameter in part.named_parameters():
                sources = block.made_of[name.rpartition(".")[2]]
                found = {group_of.get(source) for source in sources}
                clear = clear and len(found) == 1
                if found != {None}:
                    new.setdefault(sources[0], []).append(parameter)
    if not clear:
        warn_once(
            __name__,
            "AutoEP has replaced parameters that the optimizer, or the list model_parameters, holds in several groups, "
            "in part, or with state: the router and the experts are not trained. Put the optimizer into the config, "
            "and leave out model_parameters",
        )
        return
    names = {id(each): name for name, each in model.named_parameters()}
    for group in groups:
        before = list(group["params"])
        kept = ([each] * (id(each) not in gone) + new.get(id(each), []) for each in before)
        group["params"][:] = [each for some in kept for each in some]
        if "param_names" in group:
            given = dict(zip(map(id, before), group["param_names"]))
            group["param_names"] = [given.get(id(each)) or names[id(each)] for each in group["params"]]
    took_effect(__name__, "the optimizer got the router and the experts of AutoEP (unpatched: the replaced ones)")


PATCH = Patch(
    title="AutoEP with the script's own optimizer: router and experts are silently not trained; ZeRO-3: AttributeError",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.2,<0.19.7"},
    changes=(
        Edit(
            f"{_ENGINE}._configure_expert_parallel",
            before="auto_ep.replace_moe_layers(specs, ep_size=ep_size, ep_rank=ep_rank)",
            code="self._dsfix_blocks = blocks_of(model, specs)",
            uses=(blocks_of,),
        ),
        Edit(
            f"{_ENGINE}.__init__",
            after="self._configure_expert_parallel(model)",
            code="follow_replacement(self, model, model_parameters)",
            uses=(follow_replacement,),
        ),
    ),
    symptom=r"AttributeError: 'Parameter' object has no attribute 'partition_numel'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7938": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/8354": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8377": "fixed in 0.19.7",
    },
    fixed_in="0.19.7",
    fixed=(Source(f"{_ENGINE}.__init__", "_client_optimizer_needs_remap(self.client_optimizer)"),),
    ranks=2,
    config=lambda job: bool(job.get("expert_parallel", "enabled")),
)

_STEPS, _RATE = 3, 0.5


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, reference = lab.torch, lab.reference
    _ = lab.deepspeed
    if not importlib.util.find_spec("deepspeed.module_inject.auto_ep"):
        raise CannotTell("this release has no AutoEP")
    from ._autoep import Mixture, of_rank, train

    steps = [[lab.models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    right, wrong = (
        of_rank(reference.train(model, steps, model.loss, "SGD", lr=_RATE).parameters, lab.rank)
        for model in (Mixture(), Mixture(frozen=True))
    )
    asked = {"optimizer": {"type": "SGD", "params": {"lr": _RATE}}}
    forms: dict[str, Callable[[list[Any]], tuple[dict[str, Any], dict[str, Any]]]] = {
        "the script's optimizer": lambda given: ({}, {"optimizer": torch.optim.SGD(given, lr=_RATE)}),
        "a list as model_parameters": lambda given: (asked, {"model_parameters": given}),
        "a list of groups": lambda given: (asked, {"model_parameters": [{"params": given, "name": "all"}]}),
    }
    with_zero3 = importlib.util.find_spec("deepspeed.module_inject.auto_ep_folding")  # since 0.19.3
    reports = []
    for stage in (0, 3) if with_zero3 else (0,):
        for form, options in forms.items():
            model = Mixture()
            config, given = options(list(model.parameters()))
            seen = train(lab, model, steps, {"zero_optimization": {"stage": stage}, **config}, **given)
            untrained = {"those of a job that does not train the router and the experts": wrong}
            reports.append(reference.compare(seen, right, untrained, after=f"ZeRO-{stage}, {form}:"))
    return "; ".join(reports)
