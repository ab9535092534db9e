"""Sequences divided among ranks or computed in tiles."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import evaluation

_FP32_SUMS = [
    {"stage": "1", "precision": "bf16, fp32 accumulation", "accumulation": accumulation, "ranks": ranks}
    for accumulation in ("1", "3")
    for ranks in ("1", "2")
]


def _steps(job: Job, model: Any) -> None:
    engine = job.engine(model)
    job.steps(engine, range(4))


@scenario("one block is used three times in each forward pass", pinned=_FP32_SUMS)
def block_three_times(job: Job) -> None:
    forward = lambda self, x: self.head(self.block(self.block(self.block(x))))  # noqa: E731
    _steps(job, job.model(forward, block=evaluation._block(job), head=job.torch.nn.Linear(16, 1)))


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

    _steps(job, job.model(forward, block=evaluation._block(job), head=job.torch.nn.Linear(16, 1)))


def _checkpointed(job: Job, reentrant: bool) -> Any:
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x)
        for own in (self.first, self.second, self.third):
            x = checkpoint(lambda x, own=own: own(self.shared(x)), x, use_reentrant=reentrant)
        return self.head(x)

    linear = functools.partial(job.torch.nn.Linear, 16)
    blocks = {name: evaluation._block(job) for name in ("shared", "first", "second", "third")}
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

    job.steps(engine, range(4), loss)


@scenario("both inputs of a pair go through the model before one loss, as in contrastive training")
@settings(pinned=_FP32_SUMS[2:])
def pairs(job: Job) -> None:
    engine = job.engine(job.MLP())
    mse = job.torch.nn.functional.mse_loss

    def loss(batch: Any) -> Any:
        left, right = engine(batch[0]).float(), engine(0.5 * batch[0]).float()
        return mse(left - right, batch[1])

    job.steps(engine, range(4), loss)


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

    job.steps(engine, range(4), loss)


_DIVIDED: Any = {
    **{"stage": "0", "precision": ("fp32",), "ranks": ("2",), "accumulation": ("1",), "clipping": ("off",)},
    "optimizer": ("SGD",),
}
_SAMPLES, _WHOLE_LENGTH, _HEADS, _SIZE = 2, 8, 4, 4


def _attend(job: Job, sequence: int, samples: int = _SAMPLES) -> tuple[list[Any], Any]:
    """Queries, keys and values, and the output: this rank's part, or in plain PyTorch the whole.

    sequence: the dimension of the positions, 0 or 1; the other one is that of the samples.
    """
    torch = job.torch

    def local(*inputs: Any) -> Any:
        query, key, value = (each.transpose(0, 1 - sequence).transpose(1, 2) for each in inputs)
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return output.transpose(1, 2).transpose(0, 1 - sequence)

    shape = (samples, _WHOLE_LENGTH) if sequence else (_WHOLE_LENGTH, samples)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*shape, _HEADS, _SIZE, generator=generator).to(job.device) for _ in range(3)]
    if job.plain:
        inputs = [each.requires_grad_() for each in inputs]
        return inputs, local(*inputs)
    assert job._lab.deepspeed
    inputs = [_part(job, each, sequence).clone().requires_grad_() for each in inputs]
    attention = importlib.import_module("deepspeed.sequence.layer").DistributedAttention(
        local, torch.distributed.group.WORLD, 2, sequence
    )
    asks = "batch_dim_idx" in inspect.signature(attention.forward).parameters
    output = attention(*inputs, **({"batch_dim_idx": 1 - sequence} if asks else {}))
    return inputs, output.reshape(inputs[0].shape)


def _part(job: Job, tensor: Any, sequence: int) -> Any:
    return tensor.chunk(2, sequence)[job.rank]


@scenario("Ulysses' attention, batch-first, and its gradients", **_DIVIDED)
def sequence_batch_first(job: Job) -> None:
    inputs, output = _attend(job, 1)
    output.square().sum().backward()
    job.note("output", _part(job, output, 1) if job.plain else output)
    for name, each in zip(("queries", "keys", "values"), inputs):
        job.note(f"gradient of the {name}", _part(job, each.grad, 1) if job.plain else each.grad)


@scenario("Ulysses' attention of one sample, batch-first and sequence-first, and its gradients")
@settings(works_around=("ulysses_attention_permuted",), **_DIVIDED)
def sequence_of_one_sample(job: Job) -> None:
    for sequence, layout in enumerate(("sequence-first", "batch-first")):
        inputs, output = _attend(job, sequence, samples=1)
        output.square().sum().backward()
        job.note(f"{layout}: output", _part(job, output, sequence) if job.plain else output)
        for name, each in zip(("queries", "keys", "values"), inputs):
            gradient = _part(job, each.grad, sequence) if job.plain else each.grad
            job.note(f"{layout}: gradient of the {name}", gradient)


@scenario("Ulysses' attention, sequence-first, evaluated by a script that gives the output its shape")
@settings(works_around=("ulysses_sequence_first_shape",), **_DIVIDED)
def sequence_first_evaluated(job: Job) -> None:
    with job.torch.no_grad():
        _, output = _attend(job, 0)
    job.note("output", _part(job, output, 0) if job.plain else output)


# there is no engine: one job
_HERE: Any = {
    **{"stage": "0", "offload": ("none",), "precision": ("fp32",), "ranks": ("2",), "accumulation": ("1",)},
    **{"clipping": ("off",), "optimizer": ("SGD",), "overlap_comm": ("unset",), "buckets": ("large",)},
    "partitioning": ("parameters persist",),
}
_BATCHES, _LENGTH = 3, 8


def _data(job: Job, rank: int) -> Any:
    """The batches of one rank's DataLoader."""
    torch = job.torch
    tokens = torch.arange(_BATCHES * _LENGTH).view(_BATCHES, 1, _LENGTH) + 1000 * rank
    return [{"input_ids": each, "labels": each, "position_ids": torch.arange(_LENGTH)[None]} for each in tokens]


def _loader(job: Job) -> Any:
    """What a script iterates over; None where the release has no adapter."""
    try:
        module: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
        adapter = module.UlyssesSPDataLoaderAdapter
    except (ImportError, AttributeError):
        job.bits("UlyssesSPDataLoaderAdapter", "is not there")
        return None
    loader = job.torch.utils.data.DataLoader(_data(job, job.rank), batch_size=None)
    return adapter(loader, job.rank, job.torch.distributed.group.WORLD, job.world_size, job.device)


def _gloo(job: Job) -> Any:
    """gloo refuses to gather a number into vectors of one element, which NCCL accepts."""
    distributed = job.torch.distributed

    def all_gather(gathered: Any, tensor: Any, group: Any = None) -> None:
        distributed.all_gather(gathered, tensor.reshape(gathered[0].shape), group=group)

    module = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    options = SimpleNamespace(all_gather=all_gather, all_gather_object=distributed.all_gather_object)
    return mock.patch.object(module, "dist", options)


def _parts(job: Job) -> Iterator[Any]:
    """In plain PyTorch: this rank's part of the batches of both ranks, in turn."""
    both = [_data(job, rank) for rank in range(2)]
    for number in range(_BATCHES):
        for rank in range(2):
            batch = dict(both[rank][number])
            labels = job.torch.nn.functional.pad(batch.pop("labels"), (0, 1), value=-100)[..., 1:]
            batch["shift_labels"] = labels
            yield {name: each.chunk(2, 1)[job.rank] for name, each in batch.items()}


def _note(job: Job, label: str, batch: Any) -> None:
    for name, value in sorted(batch.items()):
        job.note(f"{label}: {name}", value)


@scenario("one epoch with Ulysses' adapter of a DataLoader", **_HERE)
def ulysses_one_epoch(job: Job) -> None:
    loader = _parts(job) if job.plain else _loader(job)
    if loader is None:
        return
    with contextlib.nullcontext() if job.plain else _gloo(job):
        for number, batch in enumerate(loader):
            _note(job, f"batch {number}", batch)


@scenario("a loop over Ulysses' adapter of a DataLoader is left early, and another goes on", **_HERE)
def ulysses_epoch_in_two_loops(job: Job) -> None:
    loader = _parts(job) if job.plain else _loader(job)
    if loader is None:
        return
    with contextlib.nullcontext() if job.plain else _gloo(job):
        for number, batch in zip(range(3), loader):
            _note(job, f"first, batch {number}", batch)
        for number, batch in zip(range(2), loader):
            _note(job, f"second, batch {number}", batch)


_SHARDS = 2


def _fused(job: Job) -> Any:
    """DeepSpeed's TiledFusedLogitsLoss, where the release has it."""
    if job.plain:
        return None
    try:
        return importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").TiledFusedLogitsLoss
    except (ImportError, AttributeError):
        job.bits("TiledFusedLogitsLoss", "is not there")
        return None


@scenario(
    "logits and loss are computed in tiles, with TiledFusedLogitsLoss",
    pinned=[{"stage": stage} for stage in "123"],
    stage="123",
    precision=("fp32", "bf16"),  # it does not see the loss scale
    accumulation=("1",),
)
def tiled_logits(job: Job) -> None:
    nn = job.torch.nn
    fused = _fused(job)

    def loss_of(self: Any, x: Any, y: Any) -> Any:
        return nn.functional.mse_loss(self.head(x).float(), y)

    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        x, y = self.below(inputs).unsqueeze(0), targets.unsqueeze(0)
        if fused:
            return fused.apply(loss_of, self, x, y, None, _SHARDS, list(self.head.parameters()), "mean")
        return loss_of(self, x, y)

    below = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())
    engine = job.engine(job.model(forward, below=below, head=nn.Linear(16, 1, bias=False)))
    job.steps(engine, range(4), lambda batch: engine(*batch))


_TILES, _WORDS, _TILED_LENGTH = 2, 6, 8
_FITS: Any = {"precision": ("fp32", "bf16")}


def _mean(logits: Any, labels: Any, vocab_size: int, shift_labels: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(logits.float().reshape(-1, vocab_size), shift_labels.reshape(-1))


def _trained(job: Job, masked: int) -> None:
    torch = job.torch
    tiled = None
    if not job.plain:
        try:
            tiled = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").TiledLoss
        except (ImportError, AttributeError):
            job.bits("TiledLoss", "is not there")

    def forward(self: Any, inputs: Any) -> Any:
        logits = self.head(self.below(inputs))
        labels = torch.randint(_WORDS, (1, _TILED_LENGTH), generator=torch.Generator().manual_seed(1)).to(logits.device)
        labels[:, :masked] = -100
        if tiled:
            return tiled.apply(_mean, logits, _WORDS, labels, _TILES)
        return _mean(logits, None, _WORDS, labels)

    torch.manual_seed(0)
    below = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.Tanh())
    engine = job.engine(job.model(forward, below=below, head=torch.nn.Linear(16, _WORDS)))

    def loss(batch: Any) -> Any:
        inputs = batch[0]
        return engine(torch.cat([inputs, -inputs]).unsqueeze(0)).float()

    job.steps(engine, range(3), loss)


@scenario("a loss is computed in tiles with as many labels each", pinned=[{"stage": "2"}], **_FITS)
def loss_in_equal_tiles(job: Job) -> None:
    _trained(job, 0)


@scenario("a loss is computed in tiles, one of which has masked labels", pinned=[{"stage": "1"}], **_FITS)
def loss_in_unequal_tiles(job: Job) -> None:
    _trained(job, 3)


@scenario("the share of right signs is computed in tiles of detached states, logged, and added to the loss")
@settings(release="0.18.9", **space.one_job())
def metric_in_tiles(job: Job) -> None:
    nn = job.torch.nn
    shares: Any = lambda head, x, y: ((head(x) > 0) == (y > 0)).float().mean()  # noqa: E731
    module = None if job.plain else importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")

    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        x, y = self.below(inputs)[None], targets[None]
        given, head = {"x": x.detach(), "y": y}, {"head": self.head}
        of_head = list(self.head.parameters())
        share = (
            module.sequence_tiled_compute(shares, 4, 2, given, head, "x", of_head, 0)
            if module
            else shares(**given, **head)
        )
        self.logged = share.cpu().numpy()
        return nn.functional.mse_loss(self.head(x), y) + share

    engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 1)))
    job.steps(engine, range(4), lambda batch: engine(*batch))


@scenario("an MLP is computed in tiles, with TiledMLP, on one rank")
@settings(pinned=[{"stage": "2", "ranks": "1"}, {"stage": "1", "ranks": "1", "overlap_comm": "true"}], ranks=("1",))
def tiled_mlp_of_one_rank(job: Job) -> None:
    _steps(job, _tiled(job, 2))
