"""What ranks exchange: collectives, their buckets, overlap and dtypes, and inputs that differ by rank."""

from __future__ import annotations

import copy
import importlib
from typing import Any
from unittest import mock

from matrix.bystanders.scenario import Batch, Job, scenario, settings
from matrix.bystanders.scenarios import experts
from matrix.bystanders.space import one_job


@scenario("ZeRO-3 averages gradients by all-reduce")
@settings(pinned=[{"stage": "3"}, {"stage": "3", "precision": "bf16"}, {"stage": "3", "precision": "fp16"}], stage="3")
def all_reduced(job: Job) -> None:
    """Of sizes that ranks share without padding, whose bits differ between runs."""
    nn = job.torch.nn
    job.torch.manual_seed(0)
    model = job.model(
        lambda self, x: self.head(self.body(x).tanh()), body=nn.Linear(16, 16), head=nn.Linear(16, 1, bias=False)
    )
    engine = job.engine(model, zero_optimization={"reduce_scatter": False})
    job.steps(engine, range(3))


_AVERAGED: Any = {"stage": "3", "precision": ("bf16", "fp16"), "ranks": ("2",)}
_PINNED = [{"stage": "3", "precision": "bf16", "accumulation": "2"}]


@scenario("ZeRO-3 in half precision, with gradients averaged in fp32", pinned=_PINNED, **_AVERAGED)
def averaged_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP(), communication_data_type="fp32")
    job.steps(engine, range(3))


@scenario("ZeRO-3 in half precision, with gradients averaged in fp32 by all-reduce", pinned=_PINNED, **_AVERAGED)
def all_reduced_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP(), communication_data_type="fp32", zero_optimization={"reduce_scatter": False})
    job.steps(engine, range(3))


@scenario("ZeRO-3 in half precision, with gradients averaged and accumulated in fp32", pinned=_PINNED, **_AVERAGED)
def averaged_and_accumulated_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP(), communication_data_type="fp32", data_types={"grad_accum_dtype": "fp32"})
    job.steps(engine, range(3))


_BUCKETS: Any = {"stage": "12", "overlap_comm": ("true",), "buckets": ("small",)}
_OVERLAPPING: Any = [
    {"stage": stage, "overlap_comm": "true", "buckets": "small", "accumulation": "2", "ranks": "2"} for stage in "21"
]


def _model(job: Job) -> Any:
    """Matrices of 256 numbers, which fit into a bucket of 300, and two of 512, which do not."""
    nn = job.torch.nn
    widths = (16, 16, 32, 16, 16, 16)
    layers = (nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.Tanh()) for a, b in zip(widths, widths[1:]))
    return nn.Sequential(*layers, nn.Linear(16, 1))


@scenario("gradients fill several buckets, and two are larger than a bucket")
@settings(works_around=("zero_reduce_bucket_size_zero",), pinned=_OVERLAPPING, **_BUCKETS)
def larger_than_a_bucket(job: Job) -> None:
    engine = job.engine(_model(job))
    job.steps(engine, range(4))


@scenario("a frozen matrix is larger than a bucket, and evaluation between steps", **_BUCKETS)
def frozen_larger_than_a_bucket(job: Job) -> None:
    model = _model(job)
    model[1][0].weight.requires_grad_(False)
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    for step in range(4):
        job.train(engine, step)
        with job.torch.no_grad():
            job.note(f"evaluation {step}", job.loss(engine, job.batch(1000 + step)))


_OFF: Any = {"zero_optimization": {"use_multi_rank_bucket_allreduce": False}}
_BUCKETS_OF_ONE = [
    {"stage": "1"},
    {"stage": "2", "ranks": "4"},
    {"stage": "2", "offload": "optimizer", "clipping": "on"},
]


@scenario("parts of gradients are reduced to their owner", stage="12", pinned=_BUCKETS_OF_ONE)
def reduced_to_owner(job: Job) -> None:
    engine = job.engine(job.MLP(), **_OFF)
    job.steps(engine, range(3))


_EXPERTS: Any = {
    "stage": "12",
    "offload": ("none",),
    "precision": ("fp32",),
    "accumulation": ("1", "2"),
    "optimizer": ("SGD", "AdamW"),
}


@scenario("experts on each rank, reduced to their owner")
@settings(ranks=("2", "4"), pinned=[{"stage": "2"}], works_around=("zero12_experts_reduced_to_other_rank",), **_EXPERTS)
def experts_reduced_to_owner(job: Job) -> None:
    experts._trained_apart(job, 1, **_OFF)


@scenario("experts on two of four ranks, reduced to their owner")
@settings(ranks=("4",), pinned=[{"stage": "2", "ranks": "4"}], **_EXPERTS)
def shared_experts_reduced_to_owner(job: Job) -> None:
    experts._trained_apart(job, 2, **_OFF)


_NO_TIMER: dict[str, Any] = {"throughput": {"enabled": False}}


@scenario("nothing makes the host wait between a step and the next forward pass")
@settings(
    pinned=[
        {"stage": "3", "precision": "bf16", "accumulation": "2", "partitioning": "all"},
        {"stage": "3", "clipping": "on"},
        {"stage": "3", "ranks": "1", "partitioning": "all"},
    ]
)
def not_waited_for(job: Job) -> None:
    engine = job.engine(job.MLP(), timers=_NO_TIMER)
    losses = []
    for inputs, targets in [batch for step in range(4) for batch in job.batches(step)]:
        # not mse_loss, whose backward pass makes the host wait on the emulated device
        loss = (engine(inputs).float() - targets).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    for number, loss in enumerate(losses):
        job.note(f"loss of micro-batch {number}", loss)
    job.look(engine, "at the end")


_HERE: Any = {"stage": "1", "precision": ("bf16, fp32 accumulation",), "ranks": ("2",), "clipping": ("on",)}


@scenario("one of two ranks leaves a branch out", **_HERE)
def branch_of_one_rank(job: Job) -> None:
    engine = job.engine(job.Branches())
    job.steps(engine, range(3), lambda batch: job.loss(engine, batch, job.rank == 0))


@scenario("the loss of one of two ranks reaches no parameter", **_HERE)
def rank_without_gradient(job: Job) -> None:
    engine = job.engine(job.MLP())
    apart = job.torch.ones((), device=job.device, requires_grad=True)

    def loss(batch: Batch) -> Any:
        value = job.loss(engine, batch)
        return value if job.rank == 0 else value.detach() * apart

    job.steps(engine, range(3), loss)


@scenario("a pass without gradients before each backward pass; the input needs a gradient on rank 0 only")
@settings(
    pinned=[{"stage": "3", "accumulation": "2", "partitioning": "all"}],
    stage="3",
    offload=("none",),
    precision=("fp32",),
    ranks=("2",),
    accumulation=("2",),
    partitioning=("all",),
)
def evaluated_between_by_rank(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Batch) -> Any:
        inputs, targets = batch
        found = job.loss(engine, (inputs.requires_grad_(job.rank == 0), targets))
        with job.torch.no_grad():
            engine(inputs.detach())
        return found

    job.steps(engine, range(3), loss)


_EMPTY = [
    *({"stage": stage, "precision": half, "ranks": ranks} for stage in "12" for half in ("fp16",) for ranks in "12"),
    *({"stage": stage, "offload": "optimizer", "accumulation": "2"} for stage in "12"),
    {"stage": "2", "offload": "optimizer", "precision": "fp16", "ranks": "1", "overlap_comm": "true"},
    {"stage": "1", "overlap_comm": "true", "accumulation": "2", "buckets": "small"},
]


def _forward(module: Any, inputs: Any) -> Any:
    hidden = module.inside(inputs).sum(1, keepdim=True) + module.first.sum() + module.end.sum()
    return module.above(module.below(inputs).relu()) + hidden


@scenario("parameters without elements: first, in the middle and last", pinned=_EMPTY)
def without_elements(job: Job) -> None:
    nn = job.torch.nn
    first, end = (nn.Parameter(job.torch.empty(0)) for _ in range(2))
    below, inside, above = nn.Linear(16, 16), nn.Linear(16, 0), nn.Linear(16, 1)
    model = job.model(_forward, first=first, below=below, inside=inside, above=above, end=end)
    engine = job.engine(
        model, parameters=[first, *(p for each in (below, inside, above) for p in each.parameters()), end]
    )
    job.steps(engine, range(4))


@scenario("torch is to swap the parameters of a module that is converted", stage="012", pinned=[{"stage": "1"}])
def parameters_swapped(job: Job) -> None:
    future = job.torch.__future__
    future.set_swap_module_params_on_conversion(True)
    try:
        engine = job.engine(job.MLP())
        job.steps(engine, range(3))
    finally:
        future.set_swap_module_params_on_conversion(False)


class _Quantizer:
    """In the place of CUDAQuantizer, with one scale per tensor."""

    def quantize(self, tensor: Any, groups: Any = None) -> Any:
        scale = tensor.abs().max().float().clamp(min=1e-12).reshape(1) / 127
        return (tensor.float() / scale).round().char(), scale

    def dequantize(self, quantized: Any, scales: Any) -> Any:
        return (quantized.view(scales.numel(), -1).half() * scales.view(-1, 1).half()).view(quantized.shape)


@scenario("ZeRO++ hpZ with quantized weights")
@settings(
    pinned=[{"stage": "3", "precision": "fp16", "ranks": "4", "partitioning": "all"}],
    reference=False,
    stage="3",
    offload=("none",),
    precision=("fp16",),
    ranks=("2", "4"),
    clipping=("off",),
)
def hpz_quantized(job: Job) -> None:
    nn = job.torch.nn
    job.torch.manual_seed(0)
    forward = lambda self, x: self.head(self.below(x).tanh()).mean(dim=1, keepdim=True)  # noqa: E731
    model = job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 8))
    module = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
    with mock.patch.object(module, "CUDAQuantizer", _Quantizer):
        engine = job.engine(model, zero_optimization={"zero_hpz_partition_size": 2, "zero_quantized_weights": True})
        job.steps(engine, range(3))


@scenario("the engine's module is copied between two steps, where that is possible, and training goes on", stage="3")
def module_copied(job: Job) -> None:
    engine = job.engine(job.MLP())
    twin = None
    for step in range(4):
        job.train(engine, step)
        if step == 1:
            try:
                twin = copy.deepcopy(engine.module)
            except TypeError as error:
                job.survived("copy", error)
    if twin is not None and not job.plain:
        job.bits("parameters of the copy", repr([name for name, _ in twin.named_parameters()]))


@scenario("an embedding, made dense because one of two ranks leaves it out in some steps, and a predivide factor")
@settings(
    works_around=("sparse_gradient_missing_on_rank", "sparse_gradient_predivided"),
    release="0.18.9",
    **one_job(ranks="2"),
)
def words_without_zero(job: Job) -> None:
    """The emulated device has no sparse tensors."""
    torch = job.torch
    torch.manual_seed(0)
    model = job.model(
        lambda self, x, words: self.head(x + self.words(words).mean(0) if len(words) else x),
        words=torch.nn.Embedding(16, 16, sparse=False),
        head=torch.nn.Linear(16, 1),
    )
    engine = job.engine(model, gradient_predivide_factor=2.0)
    for step in range(4):
        words = torch.arange(step, step + (3 if job.rank == 0 or step % 2 else 0), device=job.device)
        job.train(engine, step, lambda batch, words=words: job.loss(engine, batch, words))
