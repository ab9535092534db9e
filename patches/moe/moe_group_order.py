"""MoE layers with different ep_size: the experts' groups are ordered differently on each rank; ZeRO-1/2 hang.

Why: `split_params_into_different_moe_groups_for_optimizer` makes parameter groups for the experts of each ep_size, in
    the order of a set of their names. It depends on the hash of strings, which differs from process to process unless
    PYTHONHASHSEED is set. With ZeRO-1/2, ranks with different orders wait for each other in the gathers of their first
    step. If no rank has to wait, because all ranks share one layer's experts, the job trains. But checkpoints identify
    groups by index: in another run, one layer's experts get another layer's weights and optimizer state if the sizes
    match; otherwise loading fails. Without ZeRO, ranks load the optimizer's state that one of them saved.
How: the names are sorted, unless PYTHONHASHSEED is set: then all processes and runs with that seed already share one
    order, as do their checkpoints. The variable's value when dsfix is imported decides.
Changes: jobs with experts of several ep_sizes and without PYTHONHASHSEED. A checkpoint that was written without the
    patch is resumed as without it: right only if the ranks that wrote it had the order that they have now. Keep
    PYTHONHASHSEED as it was when the checkpoint was written.
Workaround: Scripts sort the groups by name before they create the optimizer, or jobs set PYTHONHASHSEED to one number.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab


def _in_one_order(names: set[str]) -> list[str]:
    from dsfix import settings

    if not settings.HASHES_REPEAT and list(names) != sorted(names, key=str):
        took_effect(__name__, "the experts' groups were sorted (unpatched: ordered differently in each process)")
    return list(names) if settings.HASHES_REPEAT else sorted(names, key=str)


_SPLIT = "deepspeed.moe.utils:split_params_into_different_moe_groups_for_optimizer"
PATCH = Patch(
    title="MoE layers with different ep_size: parameter groups are ordered differently on each rank and in each run",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _SPLIT,
            before="for key in data_parallel_group_names:\n    ...",
            code="data_parallel_group_names = _in_one_order(data_parallel_group_names)",
            uses=(_in_one_order,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/1798": "introduced"},
    present=(Source(_SPLIT, "data_parallel_group_names.add(param.group_name)"),),
    ranks=2,
)


class _Name(str):
    """A string whose place in a set is given, as the hash gives it in some process."""

    place = 0

    def __hash__(self) -> int:
        return self.place

    __eq__ = str.__eq__


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, models, reference = lab.torch, lab.models, lab.reference
    from dsfix import settings

    from ..checkpoint import _checkpoints as checkpoints
    from . import _experts as experts

    checkpoints.load_whole_files()
    settings.HASHES_REPEAT = False  # tox sets PYTHONHASHSEED

    class Twofold(experts.Sharded):
        """Experts that both ranks have, before those that they share."""

        def __init__(self) -> None:
            super().__init__(lab, ep_size=2)
            from deepspeed.moe import layer

            self.first = layer.MoE(
                experts.WIDTH,
                torch.nn.Linear(experts.WIDTH, experts.WIDTH),
                experts.EXPERTS,
                k=1,
                capacity_factor=experts.EXPERTS,
                use_rts=False,
            )

        def forward(self, x: Any) -> Any:
            return super().forward(self.first(x)[0])

        def ordered(self, names: list[str]) -> list[dict[str, Any]]:
            """The groups as a process makes them whose sets have these names in this order."""
            own = [parameter for parameter in self.parameters() if hasattr(parameter, "group_name")]
            for parameter in own:
                parameter.group_name = _Name(parameter.group_name)
                parameter.group_name.place = names.index(str(parameter.group_name))
            groups = self.groups()
            for parameter in own:
                parameter.group_name = str(parameter.group_name)
            return [{**group, "name": str(group["name"])} for group in groups]

    config = {
        "train_micro_batch_size_per_gpu": models.regression_batch(0, 0)[0].shape[0],
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 1},
    }

    def start(names: list[str]) -> Any:
        model = Twofold()
        return lab.initialize(model, config, model_parameters=model.ordered(names))

    names = ["ep_size_1", "ep_size_2"]
    engine = start(names)
    checkpoints.train(lab, engine, [models.regression_batch(lab.rank, 0)])
    engine.save_checkpoint(str(lab.tmp), tag="saved")
    saved = lab.parameters(engine)

    engine = start(names[::-1])
    try:
        engine.load_checkpoint(str(lab.tmp), tag="saved")
    except RuntimeError as error:
        # since 0.19.7, which compares the parameters' places
        if "parameter-alignment layout does not match" in str(error):
            raise BugPresent(f"load_checkpoint: {error}") from error
        raise
    for group in engine.optimizer.param_groups:
        group["lr"] = 0.0
    # writes the weights that the optimizer has
    checkpoints.train(lab, engine, [models.regression_batch(lab.rank, 1)])
    # a rank has half of what the optimizer has of the first layer: one of its two experts
    shared, first = (f"{layer}.deepspeed_moe.experts.deepspeed_experts." for layer in ("layer", "first"))
    of_rank: list[Any] = [None] * 2
    torch.distributed.all_gather_object(of_rank, {name: each.cpu() for name, each in saved.items()})
    swapped = dict(saved)
    for part in ("weight", "bias"):
        swapped[f"{shared}0.{part}"] = saved[f"{first}{lab.rank}.{part}"]
        for rank in range(2):
            swapped[f"{first}{rank}.{part}"] = of_rank[rank][f"{shared}0.{part}"]
    return reference.compare(
        lab.parameters(engine),
        saved,
        {"those of the other layer's experts": swapped},
        after="after resuming with the names in another order",
    )
