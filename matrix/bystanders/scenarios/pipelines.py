"""Pipelines."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any
from unittest import mock

from matrix.bystanders.scenario import Job, scenario, settings

_STEPS = 3
_FITS: Any = {
    "stage": "01",
    "offload": ("none",),
    "ranks": ("2", "4"),
    "precision": ("fp32", "bf16"),
    "accumulation": ("2", "3"),
    "optimizer": ("SGD", "AdamW"),
    "partitioning": ("parameters persist",),
}


def _pipeline(job: Job, config: dict[str, Any], stages: int, seed: int = 0) -> Any:
    model = job.MLP(depth=3, seed=seed)
    layers = [*model.blocks, model.head]
    if job.plain:
        return job.engine(job.torch.nn.Sequential(*layers))
    loss = lambda outputs, targets: job.torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
    module = importlib.import_module("deepspeed.pipe").PipelineModule(
        layers=layers, num_stages=stages, loss_fn=loss, partition_method="uniform"
    )
    return job.engine(module, **config)


def _step(job: Job, engine: Any, step: int) -> None:
    """The same batches for each replica of the pipeline, so that an average over the ranks is theirs as well."""
    batches = [_batch(job, step * job.accumulation + micro) for micro in range(job.accumulation)]
    if job.plain:
        for batch in batches:
            engine.backward(job.loss(engine, batch))
            engine.step()
    else:
        engine.train_batch(data_iter=iter(batches))
    for name, parameter in job.parameters(engine).items():
        job.note(f"step {step}: {name}", parameter)


def _batch(job: Job, number: int) -> Any:
    from dsfix.lab.models import regression_batch

    inputs, targets = regression_batch(0, number)
    return inputs.to(job.device, job.dtype), targets.to(job.device)


def _trained(job: Job, resumed: int = 0, stages: int = 2, **config: Any) -> None:
    engine = _pipeline(job, config, stages)
    for step in range(_STEPS):
        if resumed and step == resumed:
            job.save(engine, "resumed")
            engine = _pipeline(job, config, stages, seed=1)
            job.load(engine, "resumed")
        _step(job, engine, step)


@scenario("a plain pipeline", pinned=[{"accumulation": "2"}], **_FITS)
def pipeline(job: Job) -> None:
    _trained(job)


@scenario("a pipeline with one stage prints its timers at each step")
@settings(
    pinned=[{"accumulation": "2"}],
    works_around=("pipeline_steps_per_print", "pipeline_steps_per_print_timers"),
    **_FITS,
)
def pipeline_timed(job: Job) -> None:
    _trained(job, stages=1, wall_clock_breakdown=True, steps_per_print=1)


@scenario("a pipeline with one stage measures time but prints no timers")
@settings(pinned=[{"stage": "1", "accumulation": "2"}], **_FITS)
def pipeline_measured(job: Job) -> None:
    _trained(job, stages=1, wall_clock_breakdown=True, steps_per_print=1000)


@scenario("a pipeline resumes from a checkpoint", pinned=[{"accumulation": "2", "optimizer": "AdamW"}], **_FITS)
def pipeline_resumed(job: Job) -> None:
    _trained(job, resumed=2)


@scenario("a pipeline's module is called before it has an engine", pinned=[{"accumulation": "2"}], **_FITS)
def pipeline_called_before(job: Job) -> None:
    torch = job.torch
    calls: list[int] = []

    class Counting(torch.nn.Sequential):  # type: ignore[name-defined,misc]
        """Is not to be checkpointed: counts its calls."""

        def forward(self, inputs: Any) -> Any:
            calls.append(1)
            return super().forward(inputs)

    model = job.MLP(depth=3)
    layers = [*model.blocks, model.head]
    layers[2] = Counting(*layers[2])
    if job.plain:
        engine = job.engine(torch.nn.Sequential(*layers))
    else:
        loss = lambda outputs, targets: torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        module = importlib.import_module("deepspeed.pipe").PipelineModule(
            layers=layers,
            num_stages=1,
            loss_fn=loss,
            partition_method="uniform",
            activation_checkpoint_interval=2,
            checkpointable_layers=["Sequential"],
        )
        with torch.no_grad():
            module(torch.zeros(4, 16, device=job.device))
        calls.clear()
        engine = job.engine(module, pipeline={"activation_checkpoint_interval": 1})
    for step in range(_STEPS):
        _step(job, engine, step)
        job.note(f"step {step}: calls of a layer that is not checkpointed", len(calls))


_CHECKPOINTED: Any = {**_FITS, "ranks": ("2",)}


def _checkpointed(
    job: Job, interval: int = 0, non_reentrant: bool = False, in_place: bool = False, **config: Any
) -> None:
    """interval, non_reentrant: of the module; in_place: its first layer changes its input and is not checkpointed."""
    torch = job.torch
    model = job.MLP(depth=3)
    layers = [*model.blocks, model.head]

    class InPlace(torch.nn.Sequential):  # type: ignore[name-defined,misc]
        def forward(self, inputs: Any) -> Any:
            return super().forward(inputs.mul_(2))

    if in_place:
        layers[0] = InPlace(*layers[0])
    if job.plain:
        engine = job.engine(torch.nn.Sequential(*layers))
    else:
        loss = lambda outputs, targets: torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        options: dict[str, Any] = {"activation_checkpoint_interval": interval}
        if in_place:
            options["checkpointable_layers"] = ["Sequential", "Linear"]
        if non_reentrant:
            checkpointing = importlib.import_module("deepspeed.runtime.activation_checkpointing.checkpointing")
            options["activation_checkpoint_func"] = checkpointing.non_reentrant_checkpoint
        module = importlib.import_module("deepspeed.pipe").PipelineModule(
            layers=layers, num_stages=2, loss_fn=loss, partition_method="uniform", **options
        )
        engine = job.engine(module, **config)
    for step in range(_STEPS):
        _step(job, engine, step)


@scenario("a pipeline whose config asks for checkpointing")
@settings(pinned=[{"accumulation": "2"}], works_around=("pipeline_checkpoint_first_layers",), **_CHECKPOINTED)
def pipeline_checkpointed_by_config(job: Job) -> None:
    _checkpointed(job, pipeline={"activation_checkpoint_interval": 1})


@scenario("a pipeline whose module checkpoints without reentering")
@settings(pinned=[{"accumulation": "2"}], works_around=("pipeline_checkpoint_first_layers",), **_CHECKPOINTED)
def pipeline_checkpointed_without_reentering(job: Job) -> None:
    _checkpointed(job, 1, non_reentrant=True)


@scenario("a pipeline whose module checkpoints all layers but the first, which works in place")
@settings(pinned=[{"accumulation": "2"}], **_CHECKPOINTED)
def pipeline_checkpointed_after_the_first(job: Job) -> None:
    _checkpointed(job, 1, in_place=True)


@scenario("a pipeline whose module asks for checkpointing", pinned=[{"accumulation": "2"}], **_CHECKPOINTED)
def pipeline_checkpointed_by_module(job: Job) -> None:
    _checkpointed(job, 1)


def _evaluated(job: Job, **options: Any) -> None:
    engine = _pipeline(job, {}, 2)
    for step in range(3):
        _step(job, engine, step)
        source = iter([_batch(job, 100 + number) for number in range(job.accumulation + 2)])
        if job.plain:
            with job.torch.no_grad():
                losses = [job.loss(engine, next(source)) for _ in range(job.accumulation)]
            value: Any = sum(losses) / len(losses)
        else:
            value = engine.eval_batch(source, **options)
        job.note(f"evaluation {step}", value.reshape(-1))
        job.note(f"batches left {step}", str(len(list(source))))


@scenario("a pipeline is evaluated after each step", **_FITS)
def pipeline_evaluated(job: Job) -> None:
    _evaluated(job)


@scenario("a pipeline is evaluated, with its number of micro-batches given")
@settings(works_around=("pipeline_eval_micro_batches",), **_FITS)
def pipeline_evaluated_by_number(job: Job) -> None:
    _evaluated(job, num_micro_batches=job.accumulation)


@scenario("a pipeline's evaluation has two losses, stacked or not reduced, and logits of one micro-batch at a time")
@settings(
    works_around=("pipeline_eval_several_losses", "pipeline_eval_logits_untold"),
    release="0.18.9",
    pinned=[{"accumulation": "2"}],
    **_FITS,
)
def pipeline_losses_stacked(job: Job) -> None:
    engine = _pipeline(job, {}, 1)

    def losses(outputs: Any, targets: Any) -> list[Any]:
        return [(outputs.float() - targets).pow(n).mean() for n in (2, 4)]

    batches = [_batch(job, 100 + number) for number in range(job.accumulation)]
    if job.plain:
        with job.torch.no_grad():
            logits = [engine(inputs) for inputs, _ in batches]
        found = [losses(each, targets) for each, (_, targets) in zip(logits, batches)]
        stacked = job.torch.tensor(found).mean(0)
    else:
        engine.module.loss_fn = lambda *given: job.torch.stack(losses(*given))
        stacked = engine.eval_batch(iter(batches))
        engine.module.loss_fn = losses
        found = engine.eval_batch(iter(batches), reduce_output=None, bcast_loss=False)
        several, engine.micro_batches, engine.module.loss_fn = engine.micro_batches, 1, lambda *given: losses(*given)[0]
        logits = [engine.eval_batch(iter([each]), return_logits=True)[1] for each in batches]
        engine.micro_batches = several
        engine.module.loss_fn = lambda *given: losses(*given)[0]
    _step(job, engine, 0)
    job.note("stacked", stacked.reshape(-1))
    job.note("not reduced", job.torch.tensor(found).reshape(-1))
    job.note("logits", job.torch.cat(logits))


@scenario("a pipeline of two stages that share a layer", pinned=[{"accumulation": "2"}], **_CHECKPOINTED)
def pipeline_with_a_tied_layer(job: Job) -> None:
    torch = job.torch

    class Shared(torch.nn.Linear):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(16, 16, bias=False)
            with torch.no_grad():
                self.weight.copy_(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)) / 4)

    model = job.MLP(depth=1)
    block, head = model.blocks[0], model.head
    if job.plain:
        shared = Shared()
        engine = job.engine(torch.nn.Sequential(shared, block, shared, head))
    else:
        pipe = importlib.import_module("deepspeed.pipe")
        tied = pipe.TiedLayerSpec("shared", Shared)
        loss = lambda outputs, targets: torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        layers = [tied, block, tied, head]
        engine = job.engine(pipe.PipelineModule(layers=layers, num_stages=2, loss_fn=loss, partition_method="uniform"))
    for step in range(_STEPS):
        numbers = range(step * job.accumulation, (step + 1) * job.accumulation)
        batches = [_batch(job, number) for number in numbers]
        if job.plain:
            for batch in batches:
                engine.backward(job.loss(engine, batch))
                engine.step()
        else:
            engine.train_batch(data_iter=iter(batches))
        for name, parameter in job.parameters(engine).items():
            job.note(f"step {step}: {name.replace('tied_modules.shared', '0')}", parameter)


_TOKENS, _ROWS, _MORE, _WIDTH = 9, 10, 12, 8
_FITS_UNIVERSAL: Any = {
    "stage": "1",
    "offload": ("none",),
    "precision": ("fp32",),
    "ranks": ("1",),
    "accumulation": ("1",),
    "partitioning": ("parameters persist",),
}


def _steps(job: Job, engine: Any, batch: Callable[[int], Any], steps: range) -> None:
    for step in steps:
        inputs, targets = batch(step)
        if job.plain:
            engine.backward(job.torch.nn.functional.mse_loss(engine(inputs), targets))
            engine.step()
        else:
            engine.train_batch(data_iter=iter([(inputs, targets)]))
        _look(job, engine, f"step {step}")


def _look(job: Job, engine: Any, label: str) -> None:
    for number, parameter in enumerate(job.parameters(engine).values()):
        # releases differ in what the rows beside those of tokens are
        job.note(f"{label}: parameter {number}", parameter[:_TOKENS] if parameter.shape[-1] == _WIDTH else parameter)


def _convert(job: Job, tag: str) -> str:
    """With DeepSpeed's tool; returns the new tag."""
    folder = job.tmp / "checkpoint"
    tool = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
    words = ["--input_folder", str(folder / tag), "--output_folder", str(folder / f"{tag}_universal")]
    with mock.patch.object(sys, "argv", ["ds_to_universal.py", *words, *_WORKERS]):
        tool.main(*[tool.parse_arguments()] * len(signature(tool.main).parameters))
    return f"{tag}_universal"


_WORKERS = ("--num_extract_workers", "1", "--num_merge_workers", "1")


def _resumed(
    job: Job,
    layers: Callable[[int], Sequence[Any]],
    batch: Callable[[int], Any],
    optimizer: Callable[[list[Any]], Any] | None = None,
    grow: Callable[[Any], None] | None = None,
    **info: Any,
) -> None:
    """Two steps, then three by an engine that loads their universal checkpoint.

    Through 0.13.1 torch's optimizers can only be converted without padding: the number of elements is even.

    layers: 0 -> those of the first engine, 1 -> those of the second. grow: in plain PyTorch, makes of what was saved
    what the second engine loads. info: more of the universal checkpoint's info.
    """

    def start(number: int, **config: Any) -> Any:
        made = layers(number)
        if job.plain:
            return job.engine(job.torch.nn.Sequential(*made), optimizer=optimizer)
        module = importlib.import_module("deepspeed.pipe").PipelineModule(
            layers=list(made), num_stages=1, loss_fn=job.torch.nn.functional.mse_loss
        )
        return job.engine(module, optimizer=optimizer, **config)

    engine = start(0)
    _steps(job, engine, batch, range(2))
    if job.plain:
        engine.save("two")
        if grow:
            grow(engine.saved["two"])
        engine = start(1)
        engine.load("two")
    else:
        state = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2, **info}, "iteration": 2}
        with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
            engine.save_checkpoint(str(job.tmp / "checkpoint"), tag="two", client_state=state)
            tag = _convert(job, "two")
            engine = start(1, checkpoint={"load_universal": True})
            engine.load_checkpoint(str(job.tmp / "checkpoint"), tag=tag)
    _look(job, engine, "loaded")
    _steps(job, engine, batch, range(2, 5))


def _layers(job: Job, seed: int) -> Sequence[Any]:
    nn = job.torch.nn
    job.torch.manual_seed(seed)
    return [nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1, bias=False)]


@scenario("a pipeline of one stage resumes from a universal checkpoint")
@settings(pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "1"}], **{**_FITS_UNIVERSAL, "optimizer": ("AdamW",)})
def universal_pipeline_of_one_stage(job: Job) -> None:
    _resumed(job, lambda number: _layers(job, number), job.batch)


@scenario("a pipeline of one stage resumes from a universal checkpoint, with an optimizer that counts no steps")
@settings(
    pinned=[{"stage": "1", "optimizer": "client's AdamW", "ranks": "1"}],
    **{**_FITS_UNIVERSAL, "optimizer": ("client's AdamW",)},
)
def universal_pipeline_without_a_count(job: Job) -> None:
    torch = job.torch

    class Uncounted(torch.optim.Optimizer):  # type: ignore[name-defined,misc]
        """Adam without a correction of its bias, with moments of Adam's names."""

        @torch.no_grad()  # type: ignore[misc,untyped-decorator,unused-ignore]
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    state = self.state[parameter]
                    for name in ("exp_avg", "exp_avg_sq"):
                        state.setdefault(name, torch.zeros_like(parameter))
                    state["exp_avg"].lerp_(parameter.grad, 0.1)
                    state["exp_avg_sq"].lerp_(parameter.grad.square(), 0.05)
                    parameter.sub_(group["lr"] * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-2))

    _resumed(
        job, lambda number: _layers(job, number), job.batch, optimizer=lambda given: Uncounted(given, {"lr": 0.01})
    )


@scenario("a pipeline resumes from a universal checkpoint with more rows for the vocabulary")
@settings(pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "1"}], **{**_FITS_UNIVERSAL, "optimizer": ("AdamW",)})
def universal_with_more_rows(job: Job) -> None:
    _with_rows(job, _MORE)


@scenario("a pipeline resumes from a universal checkpoint with as many rows for the vocabulary")
@settings(
    pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "1"}],
    works_around=("universal_checkpoint_vocabulary",),
    **{**_FITS_UNIVERSAL, "optimizer": ("AdamW",)},
)
def universal_with_as_many_rows(job: Job) -> None:
    _with_rows(job, _ROWS)


def _with_rows(job: Job, rows: int) -> None:
    nn = job.torch.nn

    def layers(number: int) -> Sequence[Any]:
        job.torch.manual_seed(number)
        return [nn.Embedding(rows if number else _ROWS, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, 1, bias=False)]

    def batch(number: int) -> Any:
        _, targets = job.batch(number)
        return (job.torch.arange(len(targets)) * (number + 2) % _TOKENS).to(job.device), targets

    def grow(saved: Any) -> None:
        """The rows of tokens, and zeros."""
        weights, optimizer, _ = saved
        moments = optimizer["state"][0]
        for held, name in ((weights, "0.weight"), (moments, "exp_avg"), (moments, "exp_avg_sq")):
            held[name] = nn.functional.pad(held[name][:_TOKENS], (0, 0, 0, rows - _TOKENS))

    patterns = {"vocabulary_parameter_patterns": [r"0\.weight"], "original_vocab_size": _TOKENS}
    _resumed(job, layers, batch, grow=grow, **patterns)  # type: ignore[arg-type,unused-ignore]
