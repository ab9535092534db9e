"""TensorBoard, wandb, Comet and the CSV files get no `Train/Samples/train_loss`: only a pipeline still writes it.

Why: 0.18.3 moved the work around the backward pass into hooks of the model's output, which do not see the loss, and
    dropped the event. The learning rate is still written, and there is no message that the loss is missing.
How: `backward` adds up the losses of a step's micro-batches, each divided by their number, and the step writes the sum,
    on rank 0 and only if a monitor is on; such a step ends with one wait for the device. Not written are a loss whose
    `backward` the script calls itself, and a DTensor. A pipeline writes its own.
Workaround: Scripts write the event themselves, by `engine.monitor.write_events`. You can keep it: once a script has
    written a loss of this name, the patch writes none for any engine of the process. The first step's loss is written
    with the second's, to give a script time for its own; a script that does not write in every step gets the patch's
    losses up to its own first one. Losses written directly to one of the writers, not through `engine.monitor`, are not
    detected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_MONITORS = ("tensorboard", "wandb", "csv_monitor", "comet")
_NAME = "Train/Samples/train_loss"
_WAITING = "_dsfix_losses_waiting"  # of an engine: what is still to be written
_by_script = False  # whether a script has written a loss: engines may share a file, monitors be wrapped or copied


class _Event(tuple):  # type: ignore[type-arg]
    """One that the patch writes."""


def _writes(engine: Any) -> bool:
    """Whether this rank writes events of this engine; a pipeline has its own."""
    return engine.monitor.enabled and engine.global_rank == 0 and not engine.pipeline_parallelism


def add_loss(engine: Any, loss: Any) -> None:
    """Adds a micro-batch's loss to that of its step."""
    if _writes(engine) and not hasattr(loss, "placements"):  # a DTensor
        mean = loss.detach().float().mean()
        engine.losses = mean if engine.losses is None else engine.losses + mean


def write_loss(engine: Any) -> None:
    """Writes the loss of a step that is about to end; the first step's with the second's, if no script has by then."""
    if _writes(engine) and engine.losses is not None:
        own = vars(engine)
        added = engine.train_batch_size()
        if micro_batches := getattr(engine, "_unmanaged_backward_count", 0):  # the script says when a step ends
            added = added // engine.gradient_accumulation_steps() * micro_batches
        events = [*own.get(_WAITING, ()), _Event((_NAME, engine.losses.item(), engine.global_samples + added))]
        own[_WAITING] = () if _WAITING in own else events
        if not own[_WAITING] and not _by_script:
            engine.monitor.write_events(events)
            took_effect(__name__, "the loss was written to the monitors")


def noting_scripts(events: Any) -> Any:
    """The events; notes whether a script writes losses of this name, of an iterator while it is read."""
    if hasattr(events, "__next__"):
        return (_noted(event) for event in events)
    for event in events if isinstance(events, (list, tuple)) else ():
        _noted(event)
    return events


def _noted(event: Any) -> Any:
    global _by_script
    try:
        name = event[0]
    except (TypeError, LookupError):  # the writers complain
        return event
    if isinstance(name, str) and name == _NAME and not isinstance(event, _Event):
        _by_script = True
    return event


def _meets(job: Job) -> bool:
    return not job.pipeline and any(job.get(monitor, "enabled") is True for monitor in _MONITORS)


PATCH = Patch(
    title="TensorBoard, wandb and other monitors get no Train/Samples/train_loss, except from a pipeline",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.18.3"},
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            before="return gas_scaled_loss",
            code="add_loss(self, gas_scaled_loss)",
            uses=(add_loss,),
        ),
        Edit(
            f"{_ENGINE}._take_model_step",
            before="self.losses = None",
            code="write_loss(self)",
            uses=(write_loss,),
        ),
        Edit(
            "deepspeed.monitor.monitor:MonitorMaster.write_events",
            before="if dist.get_rank() == 0:\n    ...",
            code="event_list = noting_scripts(event_list)",
            uses=(noting_scripts,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3"},
    # through 0.18.2 the same, but `backward` was another function there
    present=(Source(f"{_ENGINE}._take_model_step", "self.losses = None\nself.global_steps += 1"),),
    config=_meets,
)

_STEPS, _ACCUMULATION, _SIZE = 3, 2, 4


def reproduce(lab: Lab) -> str:
    import csv

    torch = lab.torch
    steps = [
        [lab.models.regression_batch(rank=0, step=_ACCUMULATION * step + n, size=_SIZE) for n in range(_ACCUMULATION)]
        for step in range(_STEPS)
    ]
    model = lab.models.MLP()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=0.1)

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": _SIZE,
        "gradient_accumulation_steps": _ACCUMULATION,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "csv_monitor": {"enabled": True, "output_path": str(lab.tmp), "job_name": "job"},
        "steps_per_print": 1,
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    if not engine.monitor.enabled:
        raise CannotTell("this release has no csv_monitor")
    for micro_batches in steps:
        for inputs, targets in micro_batches:
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
            engine.step()
    written = {path.stem: path for path in lab.tmp.rglob("*.csv")}
    if "Train_Samples_lr" not in written:
        raise AssertionError(f"after {_STEPS} steps there are only {sorted(written)}")
    if "Train_Samples_train_loss" not in written:
        raise BugPresent(f"after {_STEPS} steps there are {sorted(written)}, and no Train_Samples_train_loss")
    with written["Train_Samples_train_loss"].open(newline="", encoding="utf-8") as file:
        rows = [(int(samples), float(loss)) for samples, loss in list(csv.reader(file))[1:]]
    # through 0.18.2 the samples before each step, later those after it
    apart = [row[0] - rows[0][0] for row in rows]
    if apart != [step * _ACCUMULATION * _SIZE for step in range(_STEPS)]:
        raise AssertionError(f"losses were written at the samples {[row[0] for row in rows]}")
    torch.testing.assert_close([loss for _, loss in rows], right.losses, rtol=1e-4, atol=0)
    return f"the losses of {_STEPS} steps are written, and are those of plain PyTorch"
