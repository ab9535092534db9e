"""Universal checkpoints, loaded with the same ZeRO stage or another, against the job that goes on without them."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch

from dsfix.lab.session import Lab
from dsfix.lab.universal import convert_to_universal
from matrix.parts.areas.engine import Net
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import Absent, part, public

_NUMBERS = itertools.count()


class _Net(Net):
    """With a shared weight, and one that no batch uses."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.last = torch.nn.Linear(6, 6)
        self.last.weight = self.extra.weight
        self.unused = torch.nn.Linear(3, 3) if unused else None

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        return self.last(super().forward(x, extra))


def _train(lab: Lab, engine: Any, dtype: torch.dtype, steps: range) -> None:
    for step in steps:
        for micro in range(engine.gradient_accumulation_steps()):
            generator = torch.Generator().manual_seed(100 * step + 10 * micro + lab.rank)
            x = torch.randn(2, 6, generator=generator).to(lab.device, dtype)
            engine.backward(engine(x).float().pow(2).mean())
            engine.step()


def _states(lab: Lab, engine: Any) -> dict[str, Any]:
    """Weights in fp32, and the moments; those of several groups are not linked by ZeRO-1 and 2."""
    linked = engine.zero_optimization_stage() == 3 or len(engine.optimizer.param_groups) == 1
    utils, found = lab.deepspeed.utils, dict[str, Any]()
    for name, each in engine.module.named_parameters():
        if each.requires_grad and not name.startswith("unused"):
            found[name] = utils.safe_get_full_fp32_param(each).cpu().clone()
            for key in ("exp_avg", "exp_avg_sq") if linked else ():
                found[f"{name}, {key}"] = utils.safe_get_full_optimizer_state(each, key).cpu().clone()
    return {**found, **{f"{name} of the module": each for name, each in lab.parameters(engine).items()}}


def _compare(lab: Lab, one: Any, other: Any, what: str, within: float) -> None:
    got, wanted = _states(lab, one), _states(lab, other)
    same({name: got[name] for name in got if name in wanted}, {n: wanted[n] for n in wanted if n in got}, what, within)


def _check(lab: Lab, draw: Draw, kept: bool) -> None:
    if not hasattr(public("checkpoint:ds_to_universal"), "_inject_missing_state"):
        raise Absent("universal checkpoints of Megatron's models only")
    stage = draw("stage", (1, 2, 3) if kept else (1, 2))  # ZeRO-3 loads its own only
    other = stage if kept else 3 - stage
    dtype = draw("dtype", (torch.float32, torch.bfloat16))
    unused, frozen, groups = draw.flag("unused"), draw.flag("nothing frozen"), draw("groups", (1, 2, 3))
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": draw("accumulation", (1, 2)),
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-3, "weight_decay": 0.1, "torch_adam": True},
        },
        "bf16": {"enabled": dtype == torch.bfloat16},
    }
    if draw.flag("scheduler"):
        config["scheduler"] = {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": 3}}

    def made(stage: int, **more: Any) -> Any:
        torch.manual_seed(0)
        model = _Net(unused)
        model.frozen.requires_grad_(frozen)
        weights = [each for each in model.parameters() if each.requires_grad]
        given: Any = [{"params": weights[number::groups]} for number in range(groups)]
        for number, group in enumerate(given):
            group |= {"lr": 0.01 * (number + 1), "weight_decay": 0.1 * number}
        zero = {"stage": stage, **({"offload_optimizer": {"device": "cpu"}} if more.pop("offload") else {})}
        if stage == 3:
            zero |= {"stage3_param_persistence_threshold": 0, "sub_group_size": more.pop("sub_group_size")}
        options = {key: value for key, value in more.items() if key != "sub_group_size"}
        return lab.initialize(
            model, {**copy.deepcopy(config), "zero_optimization": zero, **options}, model_parameters=given
        )

    sizes = (1_000_000_000, 40)
    first = {"offload": draw.flag("offload"), "sub_group_size": draw("sub_group_size", sizes)}
    then = {"offload": draw.flag("offload then"), "sub_group_size": draw("sub_group_size then", sizes)}
    before, root = draw.integer("steps before", 1, 2), lab.tmp / f"universal{next(_NUMBERS)}"
    engine = made(stage, **first)
    _train(lab, engine, dtype, range(before))
    engine.save_checkpoint(str(root), "x", client_state={"text": "y"})
    tag = convert_to_universal(lab, root, "x")
    resumed = made(other, checkpoint={"load_universal": True}, **then)
    path, client = resumed.load_checkpoint(str(root), tag)
    assert path is not None, "nothing was loaded"
    same(client.get("text"), "y", "client_state")
    same(resumed.global_steps, engine.global_steps, "global_steps")
    within = 1e-3 if dtype == torch.float32 else 2e-2
    _compare(lab, resumed, engine, "loaded", within)
    rates = [[float(group["lr"]) for group in each.optimizer.param_groups] for each in (resumed, engine)]
    same(rates[0], rates[1], "rates")
    for each in engine, resumed:
        _train(lab, each, dtype, range(before, before + 2))
    _compare(lab, resumed, engine, "two steps later", within)
    rates = [[float(group["lr"]) for group in each.optimizer.param_groups] for each in (resumed, engine)]
    same(rates[0], rates[1], "rates two steps later")


@part("universal/the same stage", "the job that goes on", examples=16, ranks=2, device="cuda")
def _kept(lab: Lab, draw: Draw) -> None:
    _check(lab, draw, kept=True)


@part("universal/another stage", "the job that goes on", examples=16, ranks=2, device="cuda")
def _changed(lab: Lab, draw: Draw) -> None:
    _check(lab, draw, kept=False)
