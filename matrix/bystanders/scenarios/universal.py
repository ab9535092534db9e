"""Universal checkpoints of models that are not plain stacks of layers, and one loaded within a round."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import conversions, experts, pipelines

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ONE_OR_TWO: Any = {"stage": "12", "optimizer": ("AdamW", "client's AdamW")}
_WHOLE_FILES = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


def _go_on(job: Job, make: Callable[..., Any], train: Callable[[Any, int], None]) -> None:
    """Two steps, then two more by an engine that loads their checkpoint.

    make: (seed, config) -> an engine. train: (engine, step) runs one optimizer step.
    """
    engine = make(0)
    for step in range(2):
        train(engine, step)
    with mock.patch.dict(os.environ, _WHOLE_FILES):
        job.save(engine, "two")
        tag = conversions._convert(job, "two")
        engine = make(1, checkpoint={"load_universal": True})
        job.load(engine, tag)
    for step in range(2, 4):
        train(engine, step)


@scenario(
    "a universal checkpoint of a model whose head and embedding share a weight",
    pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "4"}],
    stage="123",
    optimizer=("AdamW", "client's AdamW"),
)
def universal_tied(job: Job) -> None:
    def make(_: int, **config: Any) -> Any:
        model = job.Transformer()
        model.head.weight = model.tokens.weight
        return job.engine(model, **config)

    _go_on(job, make, job.train_on_tokens)


@scenario(
    "a universal checkpoint of a model that uses one block three times",
    pinned=[{"stage": "2", "optimizer": "AdamW", "ranks": "4"}],
    **_ONE_OR_TWO,
)
def universal_block_three_times(job: Job) -> None:
    def make(seed: int, **config: Any) -> Any:
        nn = job.torch.nn
        job.torch.manual_seed(seed)
        forward = lambda self, x: self.head(self.block(self.block(self.block(x))))  # noqa: E731
        block = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())
        return job.engine(job.model(forward, block=block, head=nn.Linear(16, 1)), **config)

    _go_on(job, make, job.train)


@scenario(
    "a universal checkpoint of an MoE model",
    pinned=[{"stage": "1", "optimizer": "AdamW"}],
    **{**experts._FITS, **_ONE_OR_TWO},
)
def universal_experts(job: Job) -> None:
    def make(_: int, **config: Any) -> Any:
        model = experts._model(job, 1, experts._EXPERTS)
        parameters: Any = list(model.parameters())
        if not job.plain:
            utils = importlib.import_module("deepspeed.moe.utils")
            parameters = utils.split_params_into_different_moe_groups_for_optimizer(
                {"params": parameters, "name": "all"}
            )
        return job.engine(model, parameters, **config)

    _go_on(job, make, job.train)


@scenario(
    "a universal checkpoint of a pipeline",
    pinned=[{"stage": "1", "accumulation": "2", "optimizer": "AdamW"}],
    **{**pipelines._FITS, "stage": "1", "optimizer": ("AdamW",)},
)
def universal_pipeline(job: Job) -> None:
    _go_on(
        job,
        lambda seed, **config: pipelines._pipeline(job, config, 2, seed),
        lambda engine, step: pipelines._step(job, engine, step),
    )


@scenario(
    "an engine returns to a universal checkpoint between two micro-batches",
    pinned=[{"stage": "1", "optimizer": "AdamW", "accumulation": "2"}],
    reference=False,  # DeepSpeed keeps the round's gradients across a load
    stage="1",
    offload=("none",),
    precision=("fp32",),
    accumulation=("2", "3"),
    optimizer=("AdamW", "client's AdamW"),
)
def universal_within_a_round(job: Job) -> None:
    def within(engine: Any) -> None:
        engine.backward(job.loss(engine, job.batch(100)))
        engine.step()

    engine = job.engine(job.MLP())
    job.train(engine, 0)
    with mock.patch.dict(os.environ, _WHOLE_FILES):
        job.save(engine, "one")
        tag = conversions._convert(job, "one")
        engine = job.engine(job.MLP(seed=1), checkpoint={"load_universal": True})
        within(engine)
        job.load(engine, tag)
    for step in range(1, 4):
        job.train(engine, step)
