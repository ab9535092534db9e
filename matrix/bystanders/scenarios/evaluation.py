"""Evaluation, train and eval mode, and passes without a step between two steps."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import discarding

_SEVERAL = ("2", "3")


class Stumble(RuntimeError):
    """An exception in a batch, such as an out-of-memory error."""


def _evaluate(job: Job, engine: Any, label: str) -> None:
    engine.eval()
    with job.torch.no_grad():
        for number in range(2):
            job.note(f"{label}: evaluation loss {number}", job.loss(engine, job.batch(500 + number)))
    engine.train()


@scenario("an evaluation before the first step and after each")
def evaluation(job: Job) -> None:
    engine = job.engine(job.MLP())
    _evaluate(job, engine, "at first")
    for step in range(3):
        job.train(engine, step)
        _evaluate(job, engine, f"step {step}")


@scenario("an evaluation between micro-batches", accumulation=_SEVERAL)
def evaluation_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            engine.step()
            _evaluate(job, engine, f"step {step}, micro-batch {micro}")
        job.look(engine, f"step {step}")


@scenario("an evaluation between forward and backward pass, and between backward pass and step")
def evaluation_between_passes(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            value = job.loss(engine, batch)
            if step == 1:
                _evaluate(job, engine, f"before backward {micro}")
            engine.backward(value)
            if step == 2:
                _evaluate(job, engine, f"after backward {micro}")
            engine.step()
        job.look(engine, f"step {step}")


@scenario("a rollout of the module without gradients before each step, with growing batches")
def rollout(job: Job) -> None:
    """Not in inference_mode, where the emulated device has no views."""
    engine = job.engine(job.MLP())
    for step in range(3):
        inputs, _ = job.batch(600 + step)
        with job.torch.no_grad():
            for length in range(1, len(inputs) + 1):
                job.note(f"step {step}: rollout {length}", engine.module(inputs[:length]).float())
        job.train(engine, step)


@scenario("an evaluation does not use some parameters")
def evaluation_of_a_part(job: Job) -> None:
    engine = job.engine(job.Branches())
    for step in range(3):
        with job.torch.no_grad():
            job.note(f"step {step}: the first branch's loss", job.loss(engine, job.batch(700 + step), False))
        job.train(engine, step, lambda batch: job.loss(engine, batch, True))


def _stumbling_forward(job: Job, engine: Any, label: str) -> None:
    def stumble(*_: Any) -> None:
        raise Stumble("the forward pass stumbled")

    handle = engine.module.blocks[1].register_forward_pre_hook(stumble)
    try:
        engine.backward(job.loss(engine, job.batch(800)))
    except Stumble as error:
        job.survived(label, error)
    finally:
        handle.remove()


@scenario("a forward pass raises an exception; the script skips the batch")
def stumble_in_forward(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        if step:
            _stumbling_forward(job, engine, f"before step {step}")
        job.train(engine, step)


@scenario("a forward pass within a round raises an exception; the script skips the batch", accumulation=_SEVERAL)
def stumble_in_forward_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            if micro:
                _stumbling_forward(job, engine, f"step {step}, micro-batch {micro}")
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario("an evaluation raises an exception")
def stumble_in_evaluation(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        if step:
            with job.torch.no_grad():
                _stumbling_forward(job, engine, f"before step {step}")
        job.train(engine, step)


@scenario("a loss is computed and dropped, without a backward pass")
def loss_thrown_away(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.note(f"step {step}: thrown away", job.loss(engine, job.batch(850 + step)))
        job.train(engine, step)


@scenario("a backward pass raises an exception at its start; the script skips the batch")
def stumble_in_backward(job: Job) -> None:
    def stumble(_: Any) -> None:
        raise Stumble("the backward pass stumbled")

    engine = job.engine(job.MLP())
    for step in range(3):
        if step:
            value = job.loss(engine, job.batch(900 + step))
            value.register_hook(stumble)  # type: ignore[no-untyped-call,unused-ignore]
            try:
                engine.backward(value)
            except Stumble as error:
                job.survived(f"before step {step}", error)
        job.train(engine, step)


@scenario("a backward pass raises an exception half-way; the script discards its gradients")
def stumble_half_way_in_backward(job: Job) -> None:
    def stumble(*_: Any) -> None:
        raise Stumble("the backward pass stumbled")

    engine = job.engine(job.MLP())
    for step in range(3):
        if step:
            handle = engine.module.blocks[0].register_forward_hook(
                lambda _, __, output: output.register_hook(stumble) and None
            )
            value = job.loss(engine, job.batch(900 + step))
            handle.remove()
            try:
                engine.backward(value)
            except Stumble as error:
                job.survived(f"before step {step}", error)
            engine.zero_grad()
        job.train(engine, step)


@scenario("hooks on parameters halve their gradients, some registered before the engine is created")
def parameter_hooks(job: Job) -> None:
    model = job.MLP()
    for parameter in model.blocks[0].parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call,unused-ignore]
    engine = job.engine(model)
    for parameter in engine.module.head.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call,unused-ignore]
    job.steps(engine, range(3))


@scenario("hooks on activations and modules change the values")
def module_hooks(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].register_forward_hook(lambda _, __, output: output * 1.5)
    engine = job.engine(model)
    engine.module.head.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 0.5,))
    engine.module.blocks[1].register_full_backward_hook(lambda _, passed, __: tuple(each * 2 for each in passed))
    job.steps(engine, range(3))


@scenario("register_post_accumulate_grad_hook on each parameter, which counts calls")
def accumulated_hooks(job: Job) -> None:
    engine = job.engine(job.MLP())
    counts: dict[str, int] = {}
    for name, parameter in engine.module.named_parameters():
        if hasattr(parameter, "register_post_accumulate_grad_hook"):

            def count(_: Any, name: str = name) -> None:
                counts[name] = counts.get(name, 0) + 1

            parameter.register_post_accumulate_grad_hook(count)
    for step in range(3):
        job.train(engine, step)
        job.note(f"step {step}: counted", str(sorted(counts.items())))


@scenario("submodules under torch.compile", accumulation=("1", "2"))
def compiled_submodules(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].compile(backend="eager")
    model.head.compile(backend="eager")
    engine = job.engine(model)
    job.steps(engine, range(3))


@scenario("gradients are read with safe_get_full_grad before each step", stage="123")
def gradients_looked_at(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            if micro + 1 == job.accumulation and not job.plain:
                get = importlib.import_module("deepspeed.utils").safe_get_full_grad
                for name, parameter in engine.module.named_parameters():
                    gradient = get(parameter)
                    job.bits(f"step {step}: {name}'s gradient", None if gradient is None else gradient.float())
            engine.step()
        job.look(engine, f"step {step}")


_FITS: Any = {"stage": "0", "precision": ("bf16",), "pinned": [{"precision": "bf16"}]}


def _evaluated(job: Job, engine: Any) -> None:
    with job.torch.no_grad():
        for number in range(2):
            job.note(f"loss {number}", job.loss(engine, job.batch(1000 + number)))


@scenario("the weights of an fp32 checkpoint are evaluated in bf16", **_FITS)
def fp32_evaluated_in_bf16(job: Job) -> None:
    engine = job.engine(job.MLP(), bf16={"enabled": False})
    dtype, job.dtype = job.dtype, job.torch.float32
    job.steps(engine, range(2))
    job.save(engine, "two")
    job.dtype = dtype
    engine = job.engine(job.MLP(seed=1))
    job.load(engine, "two")
    _evaluated(job, engine)


@scenario("the weights of a checkpoint are evaluated by an engine with different groups", **_FITS)
def evaluated_with_other_groups(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(2))
    job.save(engine, "two")
    model = job.MLP(seed=1)
    engine = job.engine(model, [{"params": list(part.parameters())} for part in (model.blocks, model.head)])
    job.load(engine, "two", optimizer=not job.plain)
    _evaluated(job, engine)


_ALL: Any = {"stage": "3", "partitioning": "all"}
_PREFETCHED: Any = {"stage": "3", "ranks": "1"}


def _part(job: Job, frozen: bool = True) -> Any:
    """Drops half of its activations in training mode, and updates statistics that evaluation mode uses."""
    nn = job.torch.nn
    part = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.5))
    return part.requires_grad_(not frozen)


def _block(job: Job) -> Any:
    nn = job.torch.nn
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())


def _head(job: Job) -> Any:
    return job.torch.nn.Linear(16, 1, bias=False)  # what pads a single number on two ranks is not initialized


def _around(job: Job, part: Any, checkpoint: Any = lambda part, x: part(x)) -> Any:
    """Gradients pass through the part to the block below."""
    model: Any = job.model(
        lambda self, x: self.head(checkpoint(self.part, self.below(x))), below=_block(job), part=part, head=_head(job)
    )
    model.part.eval()
    return model


def _trained(job: Job, model: Any) -> Any:
    return job.engine(model, [each for each in model.parameters() if each.requires_grad])


def _switching(job: Job) -> Any:
    """Computes something else in evaluation mode, without random numbers."""
    linear = job.torch.nn.Linear

    def switch(self: Any, x: Any) -> Any:
        return self.inner(x).tanh() * (1.0 if self.training else 0.5)

    parts = job.torch.nn.ModuleList(job.model(switch, inner=linear(16, 16)) for _ in range(4))

    def forward(self: Any, x: Any) -> Any:
        for part in self.parts:
            x = x + part(x)
        return self.head(x)

    return job.model(forward, parts=parts, head=_head(job))


def _evaluate_modes(job: Job, engine: Any, number: int) -> None:
    with job.torch.no_grad():
        job.note(f"evaluation {number}", job.loss(engine, job.batch(1000 + number)))


@scenario("a frozen part in the middle stays in evaluation mode", pinned=[_ALL, _PREFETCHED], stage="23")
def frozen_part_in_evaluation_mode(job: Job) -> None:
    engine = _trained(job, _around(job, _part(job)))
    job.steps(engine, range(5))


@scenario("a trained part stays in evaluation mode", pinned=[{"stage": "3", "accumulation": "2"}], stage="3")
def trained_part_in_evaluation_mode(job: Job) -> None:
    engine = _trained(job, _around(job, _part(job, frozen=False)))
    job.steps(engine, range(4))


@scenario("a frozen part in evaluation mode is checkpointed, reentrantly", pinned=[_ALL], stage="3")
def reentrant_in_evaluation_mode(job: Job) -> None:
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
    part = _part(job)
    engine = _trained(job, _around(job, part, lambda part, x: checkpoint(part, x, use_reentrant=True)))
    job.steps(engine, range(4))


@scenario("a frozen part in evaluation mode is checkpointed", pinned=[_ALL], stage="3")
def checkpointed_in_evaluation_mode(job: Job) -> None:
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
    part = _part(job)
    engine = _trained(job, _around(job, part, lambda part, x: checkpoint(part, x, use_reentrant=False)))
    job.steps(engine, range(4))


@scenario("the input passes through a frozen part in evaluation mode, which needs no gradient")
@settings(pinned=[_ALL], stage="3")
def encoder_in_evaluation_mode(job: Job) -> None:
    model = job.model(
        lambda self, x: self.head(self.above(self.part(x))),
        part=job.torch.nn.Sequential(_part(job), _part(job)),
        above=_block(job),
        head=_head(job),
    )
    engine = _trained(job, model)
    for step in range(5):
        engine.train()
        engine.module.part.eval()
        job.train(engine, step)
        engine.eval()
        _evaluate_modes(job, engine, step)


@scenario("the parts go into evaluation mode one after the other, and back", pinned=[_ALL, _PREFETCHED], stage="3")
def into_evaluation_mode_and_back(job: Job) -> None:
    engine = job.engine(_switching(job))
    for step, number in enumerate((0, 0, 0, 1, 2, 2, 2, 4, 4, 0, 0, 1)):
        for part in engine.module.parts:
            part.train()
        for part in list(engine.module.parts)[:number]:
            part.eval()
        job.train(engine, step)


@scenario("the whole model is trained in evaluation mode, and evaluated", pinned=[_ALL], stage="3")
def whole_in_evaluation_mode(job: Job) -> None:
    engine = job.engine(_switching(job))
    engine.eval()
    for step in range(5):
        _evaluate_modes(job, engine, step)
        job.train(engine, step)


@scenario("an evaluation between steps needs the input's gradient", pinned=[_ALL, _PREFETCHED], stage="3")
def input_gradients_in_evaluation(job: Job) -> None:
    engine = job.engine(_switching(job))
    for step in range(6):
        engine.train()
        job.train(engine, step)
        engine.eval()
        for number in range(2 if step > 2 else 0):
            inputs, targets = job.batch(1000 + number)
            value = job.loss(engine, (inputs.requires_grad_(), targets))
            job.note(f"step {step}: gradient {number}", job.torch.autograd.grad(value, [inputs])[0].float())


@scenario("the targets are the model's own in evaluation mode, of a part of its layers", pinned=[_ALL], stage="3")
def own_teacher_in_evaluation_mode(job: Job) -> None:
    engine = job.engine(_switching(job))
    mse = job.torch.nn.functional.mse_loss

    def loss(batch: Any) -> Any:
        learned = engine(batch[0]).float()
        engine.eval()
        with job.torch.no_grad():
            taught = engine(batch[0]).float()
        return mse(learned, 0.5 * (taught + batch[1]))

    for step in range(5):
        engine.train()
        job.train(engine, step, loss)


_OFFLOAD = [{"stage": stage, "offload": "optimizer", "ranks": ranks} for stage, ranks in ("12", "21")]
_TWO = [{"stage": "2", "offload": "optimizer"}, {"stage": "2", "offload": "optimizer", "precision": "bf16"}]
_ONE: dict[str, Any] = {"accumulation": ("1",), "precision": ("fp32", "bf16", "fp16")}


def _warm_up(job: Job, discard: Callable[[Any], None]) -> None:
    """Before the first step, and before a later one, as after a change of batch size."""
    engine = job.engine(job.MLP())
    for step in range(3):
        if step != 1:
            engine.backward(job.loss(engine, job.batch(100 + step)))
            discard(engine)
        job.train(engine, step)


def _first_pass(job: Job, discard: Callable[[Any], None]) -> None:
    """Each step has two passes, as in SAM; the first is not at the boundary."""
    engine = job.engine(job.MLP())
    for step in range(3):
        engine.set_gradient_accumulation_boundary(False)
        engine.backward(job.loss(engine, job.batch(100 + step)))
        discard(engine)
        engine.set_gradient_accumulation_boundary(True)
        job.train(engine, step)


@scenario("a warm-up pass is discarded with engine.zero_grad()", pinned=_OFFLOAD, stage="012", **_ONE)
def warm_up_by_engine(job: Job) -> None:
    _warm_up(job, discarding._by_engine)


@scenario("a warm-up pass is discarded with module.zero_grad()", pinned=_OFFLOAD, stage="012", **_ONE)
def warm_up_by_module(job: Job) -> None:
    _warm_up(job, discarding._by_module)


@scenario("a warm-up pass is discarded by setting every .grad to None", pinned=_OFFLOAD, stage="012", **_ONE)
def warm_up_by_hand(job: Job) -> None:
    _warm_up(job, discarding._by_hand)


@scenario("the first of two passes, not at the boundary, is discarded with engine.zero_grad()", stage="1", **_ONE)
def first_pass_by_engine(job: Job) -> None:
    _first_pass(job, discarding._by_engine)


@scenario("the first of two passes, not at the boundary, is discarded with module.zero_grad()", stage="1", **_ONE)
def first_pass_by_module(job: Job) -> None:
    _first_pass(job, discarding._by_module)


# with ZeRO-2 DeepSpeed keeps what it has reduced, except before 0.19.0 with offload, by a bug
@scenario("ZeRO-2: the first of two passes, not at the boundary, is discarded with the optimizer's zero_grad()")
@settings(pinned=_TWO, reference=False, stage="2", **_ONE)
def first_pass_zero2_by_optimizer(job: Job) -> None:
    _first_pass(job, discarding._by_optimizer)


@scenario("ZeRO-2: the first of two passes, not at the boundary, is discarded with module.zero_grad()")
@settings(pinned=_TWO, reference=False, stage="2", **_ONE)
def first_pass_zero2_by_module(job: Job) -> None:
    _first_pass(job, discarding._by_module)


@scenario("ZeRO-2: the first of two passes, not at the boundary, is discarded by setting every .grad to None")
@settings(pinned=_TWO, reference=False, stage="2", **_ONE)
def first_pass_zero2_by_hand(job: Job) -> None:
    _first_pass(job, discarding._by_hand)
