"""Accumulating gradients over micro-batches, and what scripts do within a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from matrix.bystanders.scenario import Job, scenario, settings


@scenario("four plain steps", works_around=("scale_wrt_gas_ignored", "scale_wrt_gas_ignored_without_zero"))
def usual(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(4))


_ONE, _SEVERAL_ACCUMULATION = ("1",), ("2", "3")


def _rounds(job: Job, engine: Any, lengths: Sequence[int]) -> None:
    """Rounds with these numbers of micro-batches, each ended by a boundary set by hand; step() only there."""
    number = 0
    for step, length in enumerate(lengths):
        for micro in range(length):
            engine.set_gradient_accumulation_boundary(micro == length - 1)
            value = job.loss(engine, job.batch(number))
            engine.backward(value)
            job.note(f"step {step}: loss of micro-batch {micro}", value)
            number += 1
        engine.step()
        job.look(engine, f"step {step}")


@scenario("rounds of 3 under engine.no_sync(), the last micro-batch outside", stage="01", accumulation=_ONE)
def under_no_sync(job: Job) -> None:
    engine = job.engine(job.MLP())
    if not hasattr(engine, "no_sync"):  # before 0.16.0
        _rounds(job, engine, (3, 3, 3))
        return
    for step in range(3):
        with engine.no_sync():
            for micro in range(2):
                engine.backward(job.loss(engine, job.batch(3 * step + micro)))
        engine.backward(job.loss(engine, job.batch(3 * step + 2)))
        engine.step()
        job.look(engine, f"step {step}")


@scenario("the script continues without engine.no_sync() where it is refused")
@settings(
    works_around=("no_sync_incompatible",),
    pinned=[{"stage": stage, "accumulation": "2"} for stage in "23"],
    stage="23",
    accumulation=_SEVERAL_ACCUMULATION,
)
def no_sync_refused(job: Job) -> None:
    """Whether it is entered is not noted: dsfix permits it in more cases."""
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            with ExitStack() as stack:
                if micro + 1 < job.accumulation and hasattr(engine, "no_sync"):
                    try:
                        stack.enter_context(engine.no_sync())
                    except AssertionError as error:
                        print(error)
                engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario("engine.no_sync() is tried around a backward pass, which is repeated without it if refused")
@settings(
    pinned=[{"stage": stage, "accumulation": "2"} for stage in "23"], stage="23", accumulation=_SEVERAL_ACCUMULATION
)
def no_sync_tried(job: Job) -> None:
    engine = job.engine(job.MLP())
    tried = hasattr(engine, "no_sync")
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            try:
                with engine.no_sync() if tried and micro == 0 else nullcontext():
                    engine.backward(job.loss(engine, batch))
            except AssertionError as error:
                print(error)
                tried = False
                engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario("as accelerate does it: no_sync around all but the last micro-batch, step() inside")
@settings(stage="23", accumulation=_SEVERAL_ACCUMULATION)
def step_under_no_sync(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        for micro, batch in enumerate(job.batches(step)):
            with ExitStack() as stack:
                if micro + 1 < job.accumulation and hasattr(engine, "no_sync"):
                    stack.enter_context(engine.no_sync())
                engine.backward(job.loss(engine, batch))
                engine.step()
        job.look(engine, f"step {step}")


@scenario("the boundary is set by hand, and step() called only there", accumulation=_SEVERAL_ACCUMULATION)
def boundary_set_by_hand(job: Job) -> None:
    _rounds(job, job.engine(job.MLP()), [job.accumulation] * 3)


@scenario("the boundary is set by hand, and step() called for every micro-batch", accumulation=_SEVERAL_ACCUMULATION)
def boundary_set_by_hand_and_each_step(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.set_gradient_accumulation_boundary(micro + 1 == job.accumulation)
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario("set_train_batch_size changes the accumulation, and the script counts micro-batches anew")
@settings(works_around=("train_batch_size_changed_untold",), stage="12", accumulation=_ONE, release="0.18.9")
def batch_size_changed(job: Job) -> None:
    engine, number = job.engine(job.MLP()), 0
    for step, length in enumerate((1, 1, 3, 3, 2)):
        if not job.plain and length != engine.gradient_accumulation_steps():
            engine.set_train_batch_size(length * engine.train_micro_batch_size_per_gpu() * engine.dp_world_size)
            engine.micro_steps = 0
            engine.optimizer.gradient_accumulation_steps = length
        for micro in range(length):
            value = job.loss(engine, job.batch(number))
            if job.plain:
                engine.set_gradient_accumulation_boundary(micro == length - 1)
                value = value / length
            engine.backward(value)
            engine.step()
            number += 1
        job.look(engine, f"step {step}")


@scenario("the last round of an epoch is shorter, its boundary set by hand", accumulation=("3",))
def short_last_round(job: Job) -> None:
    _rounds(job, job.engine(job.MLP()), (3, 3, 1, 3, 2))


@scenario("rounds of 1 to 3 micro-batches with boundaries set by hand; accumulation is not in the config")
@settings(accumulation=_ONE)
def rounds_of_any_length(job: Job) -> None:
    _rounds(job, job.engine(job.MLP()), (2, 1, 3, 2))


@scenario("the script divides its losses itself: scale_wrt_gas=False", accumulation=_SEVERAL_ACCUMULATION)
def losses_divided_by_hand(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch) / job.accumulation, scale_wrt_gas=False)
            engine.step()
        job.look(engine, f"step {step}")


@scenario("the epoch ends within a round, and the next epoch continues it", accumulation=_SEVERAL_ACCUMULATION)
def epoch_ends_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for epoch in range(job.accumulation):
        engine.train()
        for number in range(job.accumulation + 1):
            value = job.loss(engine, job.batch(10 * epoch + number))
            engine.backward(value)
            engine.step()
            job.note(f"epoch {epoch}: loss of micro-batch {number}", value)
        engine.eval()
    job.look(engine, "at the end of the last epoch, and of a round")


_OVERLAP = {"stage": "1", "overlap_comm": "true", "accumulation": "2"}
_PINNED = [
    _OVERLAP,
    {**_OVERLAP, "precision": "fp16", "optimizer": "client's SGD"},
    {**_OVERLAP, "buckets": "small", "accumulation": "3"},
    {**_OVERLAP, "buckets": "small", "ranks": "4", "optimizer": "AdamW"},
    {**_OVERLAP, "offload": "optimizer", "optimizer": "client's AdamW"},
    {**_OVERLAP, "offload": "optimizer", "ranks": "1", "optimizer": "client's AdamW"},
]


def _train(job: Job, engine: Any, step: int, both: list[bool]) -> None:
    """One optimizer step; `both`: for each micro-batch, whether it uses the second branch."""
    left = iter(both)
    job.train(engine, step, lambda batch: job.loss(engine, batch, next(left)))


@scenario("the last micro-batch does not use a branch that the first one uses", pinned=_PINNED, accumulation=("2", "3"))
def last_leaves_out(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(4):
        _train(job, engine, step, [step != 1] + [step == 2] * (job.accumulation - 1))


@scenario("only the first rank's first micro-batch uses a branch")
@settings(pinned=_PINNED, stage="1", accumulation=("2", "3"), overlap_comm=("true",))
def one_rank_uses(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(4):
        _train(job, engine, step, [job.rank == 0 and step != 1] + [step == 2] * (job.accumulation - 1))


@scenario("a branch that no micro-batch uses", pinned=_PINNED)
def never_used(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        _train(job, engine, step, [False] * job.accumulation)


@scenario("whole steps that do not use a branch", pinned=_PINNED)
def step_leaves_out(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(4):
        _train(job, engine, step, [step % 2 == 0] * job.accumulation)


@scenario("the script sets the boundary, and the last micro-batch does not use a branch", pinned=_PINNED[:4], stage="1")
def boundary_by_hand(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        for micro in range(3):
            engine.set_gradient_accumulation_boundary(micro == 2)
            value = job.loss(engine, job.batch(3 * step + micro), micro == step % 2)
            engine.backward(value)
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        engine.step()
        job.look(engine, f"step {step}")


_SEVERAL = ("2", "3")
_FP32_SUMS = [
    {"stage": "1", "precision": "bf16, fp32 accumulation", "accumulation": accumulation} for accumulation in ("1", "2")
]


@scenario("one block is frozen in each step's first micro-batch, another in its last, a third in every second step")
@settings(
    accumulation=_SEVERAL,
    stage="3",
    offload=("optimizer", "optimizer, param"),
    pinned=[{"stage": "3", "offload": "optimizer", "accumulation": "2"}],
)
def frozen_by_micro_batches(job: Job) -> None:
    engine = job.engine(job.MLP(depth=4))
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            blocks = engine.module.blocks
            blocks[0].requires_grad_(micro > 0)
            blocks[1].requires_grad_(micro + 1 < job.accumulation)
            blocks[2].requires_grad_(step % 2 == 0)
            value = job.loss(engine, batch)
            engine.backward(value)
            engine.step()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        job.look(engine, f"step {step}")


def _written_to(job: Job, write: Callable[[Any], None]) -> None:
    """Training in which `write` is called before each step of the engine."""
    engine = job.engine(job.MLP())
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            value = job.loss(engine, batch)
            engine.backward(value)
            write(engine)
            engine.step()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        job.look(engine, f"step {step}")


@scenario("gradients are clipped with torch before the step")
@settings(
    works_around=("clip_grad_norm_scalar_parameter", "clip_grad_norm_type", "fp32_clipping_inverted"),
    stage="0",
    precision=("fp32", "bf16"),
    pinned=_FP32_SUMS,
)
def clipped_by_torch(job: Job) -> None:
    def clip(engine: Any) -> None:
        if not engine.is_gradient_accumulation_boundary():
            return
        if job.plain:
            for parameter in engine.module.parameters():
                engine._average(parameter)
        job.torch.nn.utils.clip_grad_norm_(engine.module.parameters(), 0.2)

    _written_to(job, clip)


@scenario("some rows are not trained: their gradients are set to zero", stage="0", pinned=_FP32_SUMS)
def rows_masked(job: Job) -> None:
    def mask(engine: Any) -> None:
        for parameter in engine.module.blocks[0].parameters():
            if parameter.grad is not None:
                parameter.grad[:4] = 0

    _written_to(job, mask)


@scenario("a bad batch is discarded with module.zero_grad(set_to_none=False)", stage="0", pinned=_FP32_SUMS[:1])
def discarded_in_place(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        engine.backward(job.loss(engine, job.batch(100 + step)))
        engine.module.zero_grad(set_to_none=False)
        job.train(engine, step)


@scenario(
    "a gradient penalty (degree one) on the inputs, where DeepSpeed divides the gradient and not the penalty",
    stage="1",
    precision=("bf16, fp32 accumulation",),  # elsewhere a differentiated output ends ZeRO's backward pass early
    accumulation=_SEVERAL,
    pinned=[{"stage": "1", "precision": "bf16, fp32 accumulation", "accumulation": "3", "ranks": "1"}],
)
def gradient_norm_penalty(job: Job) -> None:
    torch = job.torch
    engine = job.engine(job.MLP())
    for step in range(4):
        for inputs, targets in job.batches(step):
            output = engine(inputs.requires_grad_()).float()
            (gradient,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
            loss = torch.nn.functional.mse_loss(output, targets)  # not noted: it includes the divided gradient
            engine.backward(loss + gradient.float().norm(dim=1).mean())
            engine.step()
        job.look(engine, f"step {step}")
