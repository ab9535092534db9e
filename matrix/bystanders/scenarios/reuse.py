"""Modules and parameters used more than once in a step."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FP32_SUMS = [
    {"stage": "1", "precision": "bf16, fp32 accumulation", "accumulation": accumulation, "ranks": ranks}
    for accumulation in ("1", "3")
    for ranks in ("1", "2")
]


def _block(job: Job) -> Any:
    nn = job.torch.nn
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())


def _steps(job: Job, model: Any) -> None:
    engine = job.engine(model)
    for step in range(4):
        job.train(engine, step)


@scenario("one block is used three times in each forward pass", pinned=_FP32_SUMS)
def block_three_times(job: Job) -> None:
    forward = lambda self, x: self.head(self.block(self.block(self.block(x))))  # noqa: E731
    _steps(job, job.model(forward, block=_block(job), head=job.torch.nn.Linear(16, 1)))


@scenario("two layers share a weight, as embedding and head do", pinned=_FP32_SUMS)
def tied(job: Job) -> None:
    model = job.Transformer()
    model.head.weight = model.tokens.weight
    engine = job.engine(model)
    for step in range(4):
        job.train_on_tokens(engine, step)


@scenario("two branches share their first layer", pinned=_FP32_SUMS)
def shared_layer(job: Job) -> None:
    nn = job.torch.nn
    below, left, right = nn.Linear(16, 16), nn.Linear(16, 1), nn.Linear(16, 1)
    first, second = nn.Sequential(below, nn.GELU(), left), nn.Sequential(below, nn.Tanh(), right)
    _steps(job, job.model(lambda self, x: self.first(x) + self.second(x), first=first, second=second))


@scenario("a weight is used by its module and, as in some heads, by hand", stage="012")
def weight_by_hand(job: Job) -> None:
    linear = job.torch.nn.functional.linear

    def forward(self: Any, x: Any) -> Any:
        x = linear(self.block(x), self.block[0].weight)
        return self.head(x)

    _steps(job, job.model(forward, block=_block(job), head=job.torch.nn.Linear(16, 1)))


def _checkpointed(job: Job, reentrant: bool) -> Any:
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x)
        for own in (self.first, self.second, self.third):
            x = checkpoint(lambda x, own=own: own(self.shared(x)), x, use_reentrant=reentrant)
        return self.head(x)

    linear = functools.partial(job.torch.nn.Linear, 16)
    blocks = {name: _block(job) for name in ("shared", "first", "second", "third")}
    return job.model(forward, below=linear(16), head=linear(1), **blocks)


@scenario("a layer is shared by three reentrant checkpointed segments", pinned=_FP32_SUMS)
def shared_by_reentrant_checkpoints(job: Job) -> None:
    _steps(job, _checkpointed(job, reentrant=True))


@scenario("a layer is shared by three non-reentrant checkpointed segments", pinned=_FP32_SUMS)
def shared_by_checkpoints(job: Job) -> None:
    _steps(job, _checkpointed(job, reentrant=False))


def _tiled(job: Job, layers: int) -> Any:
    """With DeepSpeed's TiledMLP where the release has it."""
    tiled = None
    if not job.plain:
        try:
            tiled = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").TiledMLP
        except (ImportError, AttributeError):
            job.bits("TiledMLP", "is not there")

    def part(self: Any, x: Any) -> Any:
        return self.down(self.up(x).tanh())

    def once(self: Any, x: Any) -> Any:
        return tiled.apply(part, self, x, 2, list(self.parameters())) if tiled else part(self, x)

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x.unsqueeze(0))  # a sequence of four
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x).squeeze(0)

    nn = job.torch.nn
    parts = [job.model(once, up=nn.Linear(16, 24), down=nn.Linear(24, 16)) for _ in range(layers)]
    return job.model(forward, below=nn.Linear(16, 16), layers=nn.ModuleList(parts), head=nn.Linear(16, 1))


@scenario("an MLP is computed in tiles, with TiledMLP", pinned=_FP32_SUMS)
def tiled_mlp(job: Job) -> None:
    _steps(job, _tiled(job, 2))


@scenario("a tiled MLP is used in two places", pinned=_FP32_SUMS[2:])
def tiled_mlp_twice(job: Job) -> None:
    model = _tiled(job, 2)
    model.layers[1] = model.layers[0]
    _steps(job, model)


@scenario("the model's own output, without gradient, is its target, as in self-distillation")
def own_teacher(job: Job) -> None:
    engine = job.engine(job.MLP())
    mse = job.torch.nn.functional.mse_loss

    def loss(batch: Any) -> Any:
        with job.torch.no_grad():
            taught = engine(batch[0].flip(0)).float()
        return mse(engine(batch[0]).float(), 0.5 * (taught + batch[1]))

    for step in range(4):
        job.train(engine, step, loss)


@scenario(
    "both inputs of a pair go through the model before one loss, as in contrastive training", pinned=_FP32_SUMS[2:]
)
def pairs(job: Job) -> None:
    engine = job.engine(job.MLP())
    mse = job.torch.nn.functional.mse_loss

    def loss(batch: Any) -> Any:
        left, right = engine(batch[0]).float(), engine(0.5 * batch[0]).float()
        return mse(left - right, batch[1])

    for step in range(4):
        job.train(engine, step, loss)


@scenario("the detached output is fed back into the model, as in truncated backpropagation")
def recurrent(job: Job) -> None:
    nn = job.torch.nn

    def forward(self: Any, x: Any, state: Any) -> Any:
        state = self.cell(job.torch.cat([x, state], 1)).tanh()
        return state, self.head(state)

    engine = job.engine(job.model(forward, cell=nn.Linear(32, 16), head=nn.Linear(16, 1)))
    for step in range(4):
        state = job.torch.zeros(4, 16, device=job.device, dtype=job.dtype)
        for micro, (inputs, targets) in enumerate(job.batches(step)):
            for _ in range(3):
                state, output = engine(inputs, state)
            value = nn.functional.mse_loss(output.float(), targets)
            engine.backward(value)
            engine.step()
            state = state.detach()
            job.note(f"step {step}: loss of micro-batch {micro}", value)
        job.look(engine, f"step {step}")


@scenario("the model is evaluated between two steps, and between micro-batches")
def evaluated_between(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        engine.eval()
        with job.torch.no_grad():
            job.note(f"evaluation before note {len(job.notes)}", job.loss(engine, job.batch(1000)))
        engine.train()
        return job.loss(engine, batch)

    for step in range(4):
        job.train(engine, step, loss)
