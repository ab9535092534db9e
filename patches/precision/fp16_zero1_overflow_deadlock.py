"""ZeRO-1 with fp16 hangs after a gradient overflow: some ranks skip the step, others do not.

Why: with ZeRO-1 each rank holds, and checks for overflow, only the gradients of its own partition. Since 0.17.1 the
    ranks exchange the result only with ZeRO-2. If one partition overflows, its rank skips the step and halves its loss
    scale, while the others continue with the collectives of the step and wait there for it. With dynamic loss scaling,
    which starts at 65536, overflows are expected.
How: the result is exchanged with every stage, as through 0.17.0 and since 0.18.0: one byte per step.
Workaround: The config sets a `loss_scale` small enough for gradients not to overflow, or uses ZeRO-2. You can keep it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_CALL = "self.check_overflow(partition_gradients=self.partition_gradients)"
_FLAG = """
overflow_gpu = get_accelerator().ByteTensor([overflow]) if self.cpu_offload else overflow.byte().to(
    get_accelerator().current_device_name())
"""
_EXCHANGE = "dist.all_reduce(overflow_gpu, op=dist.ReduceOp.MAX, group=self.dp_process_group)"

PATCH = Patch(
    title="ZeRO-1 + fp16: the job hangs when the gradient of one rank's partition overflows",
    severity=Severity.HANG,
    affects={"deepspeed": ">=0.17.1,<0.18.0"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.step",
            replace=_CALL,
            code="self.check_overflow()",
            effect=RAN,
            when="not self.partition_gradients and dist.get_world_size(group=self.dp_process_group) > 1",
        ),
    ),
    # only rank 0 logs that it skips a step; then the timeout of NCCL or gloo for the missing rank
    symptom=r"OVERFLOW! Rank 0 Skipping step[\s\S]*(Watchdog caught collective|Timed out waiting \d+ms)",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7568": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6976": "introduced in 0.17.1",
        "https://github.com/deepspeedai/DeepSpeed/pull/7580": "fixed in 0.18.0",
    },
    fixed_in="0.18.0",
    present=(Source(f"{_OPTIMIZER}.has_overflow", "if partition_gradients:\n    ..."),),
    fixed=(Source(f"{_OPTIMIZER}.has_overflow", f"{_FLAG}{_EXCHANGE}"),),
    ranks=2,
    config=lambda job: job.stage == 1 and job.may_be("fp16"),
)

_SCALE_POWER = 15  # times 2.5 is more than fp16 can represent; half of that is not
_WIDTH = 8
_LEARNING_RATE = 0.5
_STEPS = 3
_HANGING = timedelta(seconds=5)
_SLOW = timedelta(seconds=60)


def _ones(torch: Any) -> Any:
    model = torch.nn.Linear(_WIDTH, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    return model


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    # the loss is linear in the weights: the gradients are the inputs, and the last one is in rank 1's partition
    inputs = [torch.full((1, _WIDTH), 0.25) for _ in range(2)]
    inputs[0][0, -1] = 2.5
    steps = [[(each,) for each in inputs]] * (_STEPS - 1)  # the first one must be skipped
    model = _ones(torch)
    expected = lab.reference.train(model, steps, lambda x: model(x).sum(), "SGD", lr=_LEARNING_RATE)

    model = _ones(torch)
    config = {
        "fp16": {"enabled": True, "initial_scale_power": _SCALE_POWER, "hysteresis": 1},
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    check, store = engine.optimizer.check_overflow, torch.distributed.distributed_c10d._get_default_store()

    def checked(*args: Any, **kwargs: Any) -> None:
        check(*args, **kwargs)
        store.set(f"skips {step} {lab.rank}", str(bool(engine.optimizer.overflow)))

    engine.optimizer.check_overflow = checked
    for step in range(_STEPS):
        engine.backward(engine(inputs[lab.rank].to(lab.device, torch.float16)).float().sum())
        engine.step()
        store.set(f"done {step} {lab.rank}", "")
        skips = [store.get(f"skips {step} {rank}") == b"True" for rank in range(2)]
        # not through the job's collectives, in which a rank may be waiting
        done, agreed = f"done {step} {1 - lab.rank}", skips[0] == skips[1]
        try:
            store.wait([done], _SLOW if agreed else _HANGING)
        except RuntimeError as error:
            if agreed:
                raise
            raise BugPresent(
                f"rank {lab.rank} skips step {step}; rank {1 - lab.rank} does not, and is still in it after "
                f"{_HANGING.seconds} s"
            ) from error
        assert skips == [step == 0] * 2, f"in step {step} the ranks skip: {skips}"

    after = f"both ranks skip step 0; after step {_STEPS - 1}"
    return lab.reference.compare(lab.parameters(engine), expected.parameters, after=after)
