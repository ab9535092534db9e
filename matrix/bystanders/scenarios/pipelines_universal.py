"""Universal checkpoints of pipelines of one stage, with what older releases expect scripts to store."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_TOKENS, _ROWS, _MORE, _WIDTH = 9, 10, 12, 8
_FITS: Any = {
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


@scenario(
    "a pipeline of one stage resumes from a universal checkpoint",
    pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "1"}],
    **{**_FITS, "optimizer": ("AdamW",)},
)
def universal_pipeline_of_one_stage(job: Job) -> None:
    _resumed(job, lambda number: _layers(job, number), job.batch)


@scenario(
    "a pipeline of one stage resumes from a universal checkpoint, with an optimizer that counts no steps",
    pinned=[{"stage": "1", "optimizer": "client's AdamW", "ranks": "1"}],
    **{**_FITS, "optimizer": ("client's AdamW",)},
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


@scenario(
    "a pipeline resumes from a universal checkpoint with more rows for the vocabulary",
    pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "1"}],
    **{**_FITS, "optimizer": ("AdamW",)},
)
def universal_with_more_rows(job: Job) -> None:
    _with_rows(job, _MORE)


@scenario(
    "a pipeline resumes from a universal checkpoint with as many rows for the vocabulary",
    pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "1"}],
    works_around=("universal_checkpoint_vocabulary",),
    **{**_FITS, "optimizer": ("AdamW",)},
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
