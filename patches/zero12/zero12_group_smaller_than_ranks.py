"""ZeRO-1/2 with a parameter group with fewer elements than ranks: IndexError in get_flat_partition.

Why: to see whether a group is Muon's, 0.17.6 to 0.18.2 read the first parameter of this rank's part of it, whatever the
    optimizer. A rank beyond the end of a small group, of a scalar or a short bias, has none: "list index out of range"
    at the end of the first backward pass, only on that rank; the others wait for it.
How: such a part has no parameter of Muon. It is filled with zeros, as in 0.18.3 and later; the collectives stay.
Workaround: Scripts put such parameters into a larger group. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FLAT = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.get_flat_partition"
_FIRST = "getattr(tensor_list[0], 'use_muon', False)"

PATCH = Patch(
    title="ZeRO-1/2: IndexError in get_flat_partition for a parameter group with fewer elements than ranks",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.6,<0.18.3"},
    changes=(
        Edit(
            _FLAT,
            replace=_FIRST,
            code=f"(len(tensor_list) > 0 and {_FIRST})",
            count=2,
            effect="a rank without a part of a parameter group continued (unpatched: IndexError)",
            when="not tensor_list and 'momentum_buffer' not in"
            " self.optimizer.state[self.optimizer.param_groups[param_group_idx]['params'][0]]",
        ),
    ),
    symptom=r"in get_flat_partition\n[\s\S]{0,300}tensor_list\[0\][\s\S]{0,200}IndexError: list index out of range",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7629": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7700": "fixed in 0.18.3",
    },
    fixed_in="0.18.3",
    fixed=(Source(_FLAT, "len(tensor_list) == 0"),),
    ranks=2,
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    return "; ".join(_train(lab, stage) for stage in (1, 2))


def _train(lab: Lab, stage: int) -> str:
    torch = lab.torch
    batches = [[lab.models.regression_batch(rank, step) for rank in (0, 1)] for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(model, batches, model.loss, "AdamW", lr=_LEARNING_RATE).parameters

    model = lab.models.MLP()
    *others, last = model.parameters()  # the bias of the head: one element
    groups = [{"params": others}, {"params": [last]}]
    config = {"train_micro_batch_size_per_gpu": len(batches[0][0][0]), "zero_optimization": {"stage": stage}}
    engine = lab.initialize(model, config, optimizer=torch.optim.AdamW(groups, lr=_LEARNING_RATE))
    for batch in batches:
        inputs, targets = (each.to(lab.device) for each in batch[lab.rank])
        try:
            engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        except IndexError as error:
            raise BugPresent(f"with ZeRO-{stage}, on rank {lab.rank}: IndexError, {error}") from error
        engine.step()
    return lab.reference.compare(lab.parameters(engine), right, after=f"with ZeRO-{stage}, after {_STEPS} steps")
