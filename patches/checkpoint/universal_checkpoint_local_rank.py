"""ZeRO-3 on several machines: a universal checkpoint is loaded into the wrong parameters, silently.

Why: 0.14.5 to 0.17.6 cut a parameter into as many parts as there are data-parallel ranks, but then take the part
    numbered by the rank on its own machine. On one machine that is the same number; on two machines of eight GPUs,
    ranks 8 to 15 load what ranks 0 to 7 load, weights and moments. Nothing fails; the loss jumps. With model
    parallelism the numbers differ on one machine too. ZeRO-1/2 are not affected.
How: takes the part numbered by the rank in the data-parallel group, by whose size the parameter was cut.
Changes: jobs on several machines (or with model parallelism) that load a universal checkpoint under ZeRO-3 start from
    what was saved. The universal checkpoint itself is correct and can be loaded again. What was trained and saved since
    a wrong load comes from mixed-up weights and moments, and cannot be repaired.
Workaround: Scripts let `deepspeed.comm.get_local_rank` return the rank while the checkpoint is loaded. You can keep it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.load_hp_checkpoint_state"
_RANK = "dist.get_rank(group=self.dp_process_group)"

PATCH = Patch(
    title="ZeRO-3 on several machines: a universal checkpoint is loaded into the wrong parameters",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.5,<0.18.0"},
    changes=(
        Edit(
            _LOAD,
            replace="dist.get_local_rank()",
            code=_RANK,
            effect="this rank's part of the parameters was loaded (unpatched: the part with its local rank's number)",
            when=f"dist.get_local_rank() != {_RANK}",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5475": "introduced in 0.14.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/7601": "fixed in 0.18.0",
    },
    fixed_in="0.18.0",
    fixed=(Source(_LOAD, _RANK),),
    config=lambda job: job.stage == 3 and job.get("checkpoint", "load_universal") is True,
    ranks=2,
    device="cpu",
)

_STEPS = 4


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")  # two machines of one process each
    from dsfix.lab.universal import convert_to_universal

    from ._checkpoints import require_universal_zero3, train

    require_universal_zero3()
    torch = lab.torch
    batches = [[lab.models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    model = lab.models.MLP()
    half = lab.reference.train(model, batches[: _STEPS // 2], model.loss, "AdamW", lr=0.01, weight_decay=0.0).parameters
    model = lab.models.MLP()
    whole = lab.reference.train(model, batches, model.loss, "AdamW", lr=0.01, weight_decay=0.0).parameters
    first_part_twice = {}
    for name, parameter in half.items():
        part = parameter.flatten()[: (parameter.numel() + 1) // 2]
        first_part_twice[name] = torch.cat([part, part])[: parameter.numel()].view_as(parameter)

    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.0}},
        "zero_optimization": {"stage": 3},
    }
    mine = [step[lab.rank] for step in batches]
    model = lab.models.MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, mine[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half")
    tag = convert_to_universal(lab, lab.tmp, "half")
    model = lab.models.MLP(seed=1)
    config["checkpoint"] = {"load_universal": True}
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.load_checkpoint(str(lab.tmp), tag=tag)

    lab.reference.compare(
        lab.parameters(engine), half, {"rank 0's part on both ranks": first_part_twice}, after="after the load"
    )
    train(lab, engine, mine[_STEPS // 2 :])
    return lab.reference.compare(
        lab.parameters(engine), whole, after=f"after the load and {_STEPS - _STEPS // 2} steps"
    )
