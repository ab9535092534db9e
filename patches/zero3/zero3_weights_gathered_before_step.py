"""ZeRO-3: a forward pass may use the weights from before the last step.

Why: the step writes each rank's part of the weights on the current stream; the next forward pass gathers them on
    another stream, which does not wait for it. Usually the host waits in between: for the throughput timer from the
    third step on, for `loss.item()`, for a batch that is not in pinned memory. Without such a wait, weights are
    gathered before they are written, and gradients belong to older weights or to a mixture, different in each run.
    Nothing fails. Through 0.15.3 the second step of every job is at risk.
How: at the end of a step the gathering stream waits for the current one, on the device. Where the host waits for a
    gathering, because too many are in flight, it waits for the step as well.
Changes: the steps whose weights were gathered too early; all others give the same numbers. A checkpoint written without
    the patch loads, but was trained on such gradients. Not covered: weights that a script or load_checkpoint has just
    written, ZenFlow between its full steps, and MiCS with shards of one rank.
Workaround: Scripts call `torch.cuda.synchronize()` after the step. You can keep it, but it costs time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_POST_STEP = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3._post_step"
_OFFLOAD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload"


def gather_after_step(optimizer: Any) -> None:
    """Order the stream on which weights are gathered after what the current stream has been given."""
    stream = getattr(optimizer.parameter_offload, "_DeepSpeedZeRoOffload__allgather_stream", None)
    if stream is None or optimizer.partition_count == 1:  # one rank's weights are not gathered
        return
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    # releases before 0.13.2 ask the latter where they order streams
    ordered = getattr(accelerator, "resolves_data_dependency", accelerator.is_synchronized_device)
    current = accelerator.current_stream()
    if not ordered() and stream != current:
        ran(__name__)
        stream.wait_stream(current)


def _meets(job: Job) -> bool:
    if job.stage != 3 or job.ranks == 1:
        return False
    if job.device("offload_optimizer") != "none":  # the host, which waits, copies the weights to the device
        return False
    if job.get("zero_optimization", "overlap_comm") is False:  # gathers on the default stream
        return False
    return any(job.get("timers", "throughput", key) is False for key in ("enabled", "synchronized"))


PATCH = Patch(
    title="ZeRO-3: a forward pass may use weights from before the last step (a race)",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _POST_STEP,
            before="self.timers.log(timer_names)",
            code="gather_after_step(self)",
            uses=(gather_after_step,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/1453": "introduced",
    },
    present=(
        Source(
            f"{_OFFLOAD}.__init__",
            """
self.__allgather_stream = None if get_accelerator().is_synchronized_device() else get_accelerator().Stream(
) if overlap_comm else get_accelerator().default_stream()
""",
        ),
    ),
    ranks=2,
    config=_meets,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    lab.require_ranks(2)
    if not lab.emulated:
        raise CannotTell("whether it is gathered too early depends on timing, which only the emulated device controls")
    lab.late_streams()
    # the first step after which the host does not wait
    before = 0 if Version(lab.deepspeed.__version__) < Version("0.15.4") else 1
    torch, models = lab.torch, lab.models
    steps = [[models.regression_batch(rank, step) for rank in range(lab.world_size)] for step in range(before + 2)]

    model = models.MLP()
    lab.reference.train(model, steps[:-2], model.loss, "SGD", lr=_LEARNING_RATE)
    mean = torch.stack([model.loss(*batch) for batch in steps[-1]]).mean()
    early = torch.autograd.grad(mean, list(model.parameters()))
    lab.reference.train(model, steps[-2:-1], model.loss, "SGD", lr=_LEARNING_RATE)
    wrong = {n: p.detach() - _LEARNING_RATE * g for (n, p), g in zip(model.named_parameters(), early)}
    right = lab.reference.train(model, steps[-1:], model.loss, "SGD", lr=_LEARNING_RATE).parameters

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "timers": {"throughput": {"enabled": False}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    # copied before, because the host waits for such a copy
    for inputs, targets in [[each.to(lab.device) for each in batches[lab.rank]] for batches in steps]:
        # not mse_loss, whose backward pass makes the host wait on the emulated device
        engine.backward((engine(inputs) - targets).square().mean())
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        right,
        {"those of a gradient at the weights of before the previous step": wrong},
        after=f"after {len(steps)} steps",
    )
