"""Ulysses' sequence parallelism and tiled layers, in scripts that work around one of their bugs."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import epochs, logits, losses_in_tiles, reuse, sequences

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_LAYER = "deepspeed.sequence.layer"
_TILED = "deepspeed.runtime.sequence_parallel.ulysses_sp"


def _one(release: str, **levels: str) -> dict[str, Any]:
    """Without ZeRO on two ranks, with these levels, on this release: one job."""
    setting = {**space.plain(), "stage": "0", **levels}
    return {"release": release, "pinned": [setting], **{name: (level,) for name, level in setting.items()}}


@scenario("the two samples of a batch are one sequence for TiledMLP",
    works_around=("tiled_mlp_batch",), **_one("0.17.2"))  # fmt: skip
def samples_in_one_sequence(job: Job) -> None:
    nn = job.torch.nn
    tiled: Any = None if job.plain else importlib.import_module(_TILED).TiledMLP
    part: Any = lambda self, x: self.down(self.up(x).tanh())  # noqa: E731

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x.view(2, 2, 16))
        if tiled:
            flat = x.reshape(1, 4, 16)
            x = x + tiled.apply(part, self.mlp, flat, 2, list(self.mlp.parameters())).reshape(x.shape)
        else:
            x = x + part(self.mlp, x)
        return self.head(x).view(4, 1)

    mlp = job.model(part, up=nn.Linear(16, 24), down=nn.Linear(24, 16))
    reuse._steps(job, job.model(forward, below=nn.Linear(16, 16), mlp=mlp, head=nn.Linear(16, 1)))


@scenario("evaluations compute the loss whole, or discard what TiledFusedLogitsLoss has added to the gradients",
    works_around=("tiled_logits_evaluation",), **_one("0.17.4"))  # fmt: skip
def evaluated_without_tiles(job: Job) -> None:
    nn = job.torch.nn
    fused: Any = logits._fused(job)
    whole: Any = lambda self, x, y: nn.functional.mse_loss(self.head(x), y)  # noqa: E731

    def forward(self: Any, inputs: Any, targets: Any, tiles: bool) -> Any:
        x, y = self.below(inputs).unsqueeze(0), targets.unsqueeze(0)
        if fused and tiles:
            return fused.apply(whole, self, x, y, None, 2, list(self.head.parameters()), "mean")
        return whole(self, x, y)

    engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 1)))
    for step in range(4):
        job.train(engine, step, lambda batch: engine(*batch, True))
        engine.eval()
        with job.torch.no_grad():
            for tiles in (False, True):
                job.note(f"step {step}: evaluated, tiles {tiles}", engine(*job.batch(100 + step), tiles))
        engine.zero_grad()
        engine.train()


@scenario("labels are masked: a sum over tiles is divided by the number of labels, and TiledLoss has one tile",
    works_around=("tiled_loss_unweighted",), **_one("0.18.9"))  # fmt: skip
def tiles_of_a_sum(job: Job) -> None:
    nn, words = job.torch.nn, losses_in_tiles._WORDS
    module = None if job.plain else importlib.import_module(_TILED)

    def share(self: Any, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(self.head(x).view(-1, words), y.view(-1), reduction="sum") / self.count

    def forward(self: Any, inputs: Any, fused: bool) -> Any:
        x = self.below(inputs)[None]
        labels = job.torch.arange(4, device=x.device)[None]
        labels[:, :1] = -100
        self.count = (labels != -100).sum()
        if module and fused:
            parameters = list(self.head.parameters())
            return module.TiledFusedLogitsLoss.apply(share, self, x, labels, None, 2, parameters, "sum")
        if module:
            return module.TiledLoss.apply(losses_in_tiles._mean, self.head(x), words, labels, 1)
        return share(self, x, labels)

    for first, fused in ((0, True), (3, False)):
        engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, words)))
        for step in range(first, first + 3):
            job.train(engine, step, lambda batch, engine=engine, fused=fused: engine(batch[0], fused))


@scenario("the engine sums the gradients of the ranks that share a sequence, and the script does not divide them",
    works_around=("ulysses_gradients_too_small",), **_one("0.14.2"))  # fmt: skip
def summed_by_the_engine(job: Job) -> None:
    model = job.MLP()
    if job.plain:
        engine = job.engine(model)
    else:
        groups = importlib.import_module("dsfix.lab.ulysses").OneSequence(job._lab)
        initial, given = job._whole(model), list(model.parameters())
        engine = job._lab.initialize(model, space.config(job.setting), model_parameters=given, mpu=groups)
        job._initial[id(engine)] = initial
        engine.gradient_average = False
    times = 2 if job.plain else 1
    for step in range(3):
        job.train(engine, step, backward=lambda value: engine.backward(value * times))


@scenario("a job with sequence parallelism resumes, and calls all its ranks the first of the model's",
    works_around=("ulysses_load_checkpoint_index",), **_one("0.18.9", stage="2"))  # fmt: skip
def first_of_the_model(job: Job) -> None:
    if job.plain:
        _resumed(job, job.engine)
        return
    groups: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    groups.initialize_sequence_parallel(sequence_parallel_size=2)

    def engine(model: Any) -> Any:
        initial, given = job._whole(model), list(model.parameters())
        made = job._lab.initialize(model, space.config(job.setting), model_parameters=given, mpu=groups)
        job._initial[id(made)] = initial
        return made

    with mock.patch.object(groups, "get_model_parallel_rank", return_value=0):
        _resumed(job, engine)


def _resumed(job: Job, make: Any) -> None:
    engine = make(job.MLP())
    for step in range(5):
        if step == 2:
            job.save(engine, "two")
            engine = make(job.MLP(seed=1))
            job.load(engine, "two")
            job.look(engine, "loaded")
        times = 2 if job.plain else 1  # of ranks with parts of a sequence, gradients are added
        job.train(engine, step, backward=lambda value, engine=engine, times=times: engine.backward(value * times))


def _noted(job: Job, inputs: Any, output: Any, sequence: int) -> None:
    output.square().sum().backward()
    named = zip(("output", "of the queries", "of the keys", "of the values"), (output, *(x.grad for x in inputs)))
    for name, each in named:
        job.note(name, sequences._part(job, each, sequence) if job.plain else each)


@scenario("Ulysses' attention, sequence-first: the script turns its tensors around for DeepSpeed, and back",
    works_around=("ulysses_sequence_first_shape",), **_one("0.18.9"))  # fmt: skip
def turned_for_attention(job: Job) -> None:
    def turned(self: Any, query: Any, key: Any, value: Any, batch_dim_idx: int) -> Any:
        local, self.gather_idx = self.local_attn, 1
        self.local_attn = lambda *inputs: local(*(each.transpose(0, 1) for each in inputs)).transpose(0, 1)
        return former(self, *(each.transpose(0, 1) for each in (query, key, value)), 0).transpose(0, 1)

    if job.plain:
        _noted(job, *sequences._attend(job, 0), 0)
        return
    attention = importlib.import_module(_LAYER).DistributedAttention
    former = attention.forward
    with mock.patch.object(attention, "forward", turned):
        _noted(job, *sequences._attend(job, 0), 0)


@scenario("Ulysses' attention with a stream: the script's own hooks wait for the gradients of queries and keys",
    works_around=("ulysses_overlap_gradients",), **_one("0.18.9"))  # fmt: skip
def waited_for_in_own_hooks(job: Job) -> None:
    if job.plain:
        _noted(job, *sequences._attend(job, 1), 1)
        return
    attention = importlib.import_module(_LAYER).DistributedAttention
    former = attention.forward

    class Stream(job.torch.cuda.Stream):  # type: ignore[name-defined,misc,unused-ignore]
        """Is unequal to None with any torch."""

        def __ne__(self, other: object) -> bool:
            return not self == other

        __hash__ = job.torch.cuda.Stream.__hash__

    def waiting(self: Any, query: Any, key: Any, value: Any, batch_dim_idx: int) -> Any:
        def received(name: str, gradient: Any) -> Any:
            self.overlap_handles[f"{name}_work"].wait()
            later = self.overlap_handles[f"{name}_post_all2all_func"]
            return later(self.overlap_handles[f"{name}_grad"]).reshape(gradient.shape)

        query, key = ((each * 1).view_as(each) for each in (query, key))  # as from a projection
        output = former(self, query, key, value, batch_dim_idx)
        query.register_hook(functools.partial(received, "dq"))
        key.register_hook(functools.partial(received, "dk"))
        return output

    start = functools.partialmethod(attention.__init__, sp_stream=Stream())
    with mock.patch.object(attention, "__init__", start), mock.patch.object(attention, "forward", waiting):
        _noted(job, *sequences._attend(job, 1), 1)


@scenario("each epoch with Ulysses' adapter has a new iterator of the DataLoader, or a new adapter",
    works_around=("ulysses_second_epoch_empty",), **_one("0.17.2"))  # fmt: skip
def iterator_of_each_epoch(job: Job) -> None:
    loader: Any = None if job.plain else epochs._loader(job)
    with contextlib.nullcontext() if job.plain else epochs._gloo(job):
        for epoch in range(4):
            if loader and epoch < 2:
                loader.iter = iter(loader.dl)
            elif loader:
                loader = epochs._loader(job)
            for number, batch in enumerate(epochs._parts(job) if job.plain else loader):
                epochs._note(job, f"epoch {epoch}, batch {number}", batch)
