"""ZeRO-3 on several machines: a universal checkpoint is loaded into wrong parameters, in silence.

Why: 0.14.5 to 0.17.6 cut a parameter into as many parts as there are data-parallel ranks and then take the part of the
    rank's number on its own machine. On one machine that is the same number; on two machines of eight GPUs, ranks 8 to
    15 load what ranks 0 to 7 load, weights and moments. Nothing fails; the loss jumps. With model parallelism the
    numbers differ on one machine too. ZeRO-1/2 are not concerned.
How: the part is that of the rank in the data-parallel group, by whose size the parameter was cut.
Changes: jobs of several machines (or with model parallelism) that load a universal checkpoint under ZeRO-3 start from
    what was saved. The universal checkpoint itself is right and can be loaded again. What was trained and saved since
    a faulty load comes from mixed-up weights and moments, and stays so.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/5475 (0.14.5), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/7601 (0.18.0).
Retire: when DeepSpeed 0.17.6 is no longer supported here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.load_hp_checkpoint_state"
_RANK = "dist.get_rank(group=self.dp_process_group)"

PATCH = Patch(
    title="ZeRO-3 on several machines: a universal checkpoint is loaded into wrong parameters",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.5,<0.18.0"},
    changes=(Edit(_LOAD, replace="dist.get_local_rank()", code=_RANK),),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/5475",
        "https://github.com/deepspeedai/DeepSpeed/pull/7601",
    ),
    fixed_in="0.18.0",
    fixed=(Source(_LOAD, _RANK),),
    ranks=2,
    device="cpu",
)

_STEPS = 4


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")  # two machines of one process each
    from dsfix.lab.checkpoints import require_universal_zero3

    require_universal_zero3()
    torch = lab.torch
    from dsfix.lab.checkpoints import convert_to_universal, train
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference
    from dsfix.lab.reference import train as reference

    batches = [[regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    model = MLP()
    half = reference(model, batches[: _STEPS // 2], model.loss, "AdamW", lr=0.01, weight_decay=0.0).parameters
    model = MLP()
    whole = reference(model, batches, model.loss, "AdamW", lr=0.01, weight_decay=0.0).parameters
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
    model = MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, mine[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half")
    tag = convert_to_universal(lab, lab.tmp, "half")
    model = MLP(seed=1)
    config["checkpoint"] = {"load_universal": True}
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.load_checkpoint(str(lab.tmp), tag=tag)

    loaded = lab.parameters(engine)
    difference = largest_difference(loaded, half)
    if largest_difference(loaded, first_part_twice).relative < 1e-4 < difference.relative:
        raise BugPresent(f"both ranks have loaded the part of rank 0: {difference}")
    assert difference.relative < 1e-4, f"loaded: {difference}"
    train(lab, engine, mine[_STEPS // 2 :])
    difference = largest_difference(lab.parameters(engine), whole)
    assert difference.relative < 1e-4, f"after the load and {_STEPS - _STEPS // 2} steps {difference}"
    return f"loaded, and after more steps, the parameters are plain PyTorch's within {difference.relative:.1e}"
