"""What goes into a forward pass and comes out of it, and buffers."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

from matrix.bystanders.scenario import Job, scenario, settings

_WIDTH, _STAGES = 16, 4
_FITS: Any = {
    "stage": "01",
    "offload": ("none",),
    "precision": ("fp32", "bf16"),
    "accumulation": ("2", "3"),
    "clipping": ("off",),
    "optimizer": ("SGD", "AdamW"),
    "partitioning": ("parameters persist",),
}


def _trained(
    job: Job, name: str, rows: Any = (4,), stages: str = "PipelineModule", recomputed: bool = False, **options: Any
) -> None:
    """name: what the stages pass, a key of _PASSED. rows: of the micro-batches in turn. stages: the class's name.

    options: of the PipelineModule.
    """
    config: Any = {"pipeline": {"activation_checkpoint_interval": 1}} if recomputed else {}
    nn = job.torch.nn
    step_of, head_of, start = _PASSED[name]

    def layer(number: int) -> Any:
        job.torch.manual_seed(number)
        parts = {"body": nn.Linear(_WIDTH, _WIDTH), "other": nn.Linear(_WIDTH, _WIDTH)}
        return job.model(step_of, **parts) if number < _STAGES - 1 else job.model(head_of, head=nn.Linear(_WIDTH, 1))

    layers = [layer(number) for number in range(_STAGES)]
    if job.plain:
        engine = job.engine(nn.Sequential(*layers))
    else:
        loss = lambda outputs, targets: nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        module = importlib.import_module("deepspeed.pipe").PipelineModule
        if stages != module.__name__:
            module = type(stages, (module,), {})
        known = inspect.signature(importlib.import_module("deepspeed.pipe").PipelineModule).parameters
        options = {key: value for key, value in options.items() if key in known}
        whole: Any = {"layers": layers, "num_stages": job.world_size, "loss_fn": loss, "partition_method": "uniform"}
        engine = job.engine(module(**whole, **options), **config)
    for step in range(3):
        numbers = range(step * job.accumulation, (step + 1) * job.accumulation)
        # the same batches on all ranks, so that plain PyTorch's average over the ranks is that of one
        batches = [_batch(job, number, rows[number % len(rows)], start) for number in numbers]
        if job.plain:
            for batch in batches:
                engine.backward(job.loss(engine, batch))
                engine.step()
        else:
            engine.train_batch(data_iter=iter(batches))
        for label, parameter in job.parameters(engine).items():
            job.note(f"step {step}: {label}", parameter)


def _batch(job: Job, number: int, rows: int, start: Any) -> Any:
    from dsfix.lab.models import regression_batch

    x, targets = regression_batch(0, number, size=rows)
    y, _ = regression_batch(1, number, size=rows)
    indices = job.torch.arange(_WIDTH).flip(0).repeat(rows, 1)
    given = start(x.to(job.device, job.dtype), indices.to(job.device), y.to(job.device, job.dtype))
    return given, targets.to(job.device)


# (a stage in the middle, the last one, the batch's inputs from two float tensors and indices)
_PASSED: Any = {
    "indices": (
        lambda self, given: (self.body(given[0]).tanh() + self.other(given[0].gather(1, given[1])), given[1]),
        lambda self, given: self.head(given[0].gather(1, given[1])),
        lambda x, indices, y: (x, indices),
    ),
    "floats, indices": (
        lambda self, given: (self.body(given[0]).tanh() + given[1].gather(1, given[2]), self.other(given[1]), given[2]),
        lambda self, given: self.head(given[0] + given[1].gather(1, given[2])),
        lambda x, indices, y: (x, y, indices),
    ),
    "float, indices, float": (
        lambda self, given: (self.body(given[0]).tanh() + given[2].gather(1, given[1]), given[1], self.other(given[2])),
        lambda self, given: self.head(given[0] + given[2].gather(1, given[1])),
        lambda x, indices, y: (x, indices, y),
    ),
    "mask": (
        lambda self, given: (self.body(given[0]).tanh() + self.other(given[0]) * given[1].to(given[0].dtype), given[1]),
        lambda self, given: self.head(given[0] * given[1].to(given[0].dtype)),
        lambda x, indices, y: (x, y > 0),
    ),
    "float mask": (
        lambda self, given: (self.body(given[0]).tanh() + self.other(given[0]) * given[1], given[1]),
        lambda self, given: self.head(given[0] * given[1]),
        lambda x, indices, y: (x, (y > 0).to(x.dtype)),
    ),
}


@scenario("the stages of a pipeline pass a float tensor and indices")
@settings(pinned=[{"ranks": "4", "accumulation": "2"}], ranks=("2", "4"), **_FITS)
def pipeline_indices(job: Job) -> None:
    _trained(job, "indices")


@scenario("the stages of a pipeline pass two float tensors, which both have gradients, and indices")
@settings(
    works_around=("pipeline_receive_buffer_dtype",),
    pinned=[{"ranks": "4", "stage": "1", "accumulation": "2"}],
    ranks=("2", "4"),
    **_FITS,
)
def pipeline_two_floats(job: Job) -> None:
    _trained(job, "floats, indices")


@scenario("two stages pass two float tensors, and indices between them", ranks=("2",), **_FITS)
def pipeline_indices_between(job: Job) -> None:
    _trained(job, "float, indices, float")


@scenario("the stages of a pipeline pass a boolean mask, as DeepSpeed's GPT-2 does")
@settings(
    works_around=("pipeline_float_without_gradient",),
    pinned=[{"ranks": "4", "accumulation": "2"}],
    ranks=("2", "4"),
    **_FITS,
)
def pipeline_mask(job: Job) -> None:
    _trained(job, "mask", stages="GPT2ModelPipe")


@scenario("the micro-batches of a pipeline have different sizes")
@settings(pinned=[{"ranks": "4", "accumulation": "3"}], ranks=("2", "4"), **_FITS)
def pipeline_sizes(job: Job) -> None:
    _trained(job, "floats, indices", rows=(4, 2, 6), dynamic_shape=True)


@scenario("the stages of a pipeline compute their forward pass again, and pass a float mask, which gets a gradient")
@settings(pinned=[{"ranks": "2", "accumulation": "2"}], ranks=("2", "4"), **_FITS)
def pipeline_float_mask(job: Job) -> None:
    _trained(job, "float mask", recomputed=True, activation_checkpoint_interval=1)


@dataclasses.dataclass
class _Info:
    layers: int


@scenario("layers take an object, and return it in a tuple or a dict beside a tensor", stage="3")
def objects_beside_tensors(job: Job) -> None:
    nn = job.torch.nn
    job.torch.manual_seed(0)

    def first(self: Any, x: Any, info: Any) -> Any:
        return self.body(x).tanh(), _Info(info.layers + 1)

    def second(self: Any, x: Any, info: Any) -> Any:
        return {"x": self.body(x).tanh(), "info": _Info(info.layers + 1)}

    def whole(self: Any, x: Any) -> Any:
        x, info = self.first(x, _Info(0))
        found = self.second(x, info)
        return self.head(found["x"]) / found["info"].layers

    model = job.model(
        whole,
        first=job.model(first, body=nn.Linear(16, 16)),
        second=job.model(second, body=nn.Linear(16, 16)),
        head=nn.Linear(16, 1),
    )
    engine = job.engine(model)
    job.steps(engine, range(3))


_HALF: Any = {"precision": ("bf16", "fp16")}

# by powers of two, so that the order of divisions changes no bit
_ALIKE: Any = {"reference": False, "accumulation": ("1", "2"), **_HALF}
_BF16: Any = {"precision": "bf16"}
_FAR = 1000
_TRANSFORMERS = "transformers.models.llama.modeling_llama"


def _rotary(job: Job, persistent: bool = False, dtype: Any = None, module: str = _TRANSFORMERS) -> Any:
    """With the interface of transformers: cos and sin in the dtype of x."""
    torch = job.torch

    class Rotary(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        __module__ = module

        def __init__(self) -> None:
            super().__init__()
            frequencies = 10_000.0 ** -(torch.arange(8) / 8)
            self.register_buffer("inv_freq", frequencies.to(dtype or frequencies.dtype), persistent=persistent)

        def forward(self, x: Any, position_ids: Any) -> Any:
            angles = position_ids[..., None].float() * self.inv_freq.float()
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    return Rotary()


def _table(job: Job, rotary: Any) -> Any:
    """Tables of a fixed length, computed when first called, in the dtype of the frequencies."""
    torch = job.torch

    class Table(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        __module__ = _TRANSFORMERS

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inv_freq", rotary.inv_freq.clone())
            self.cos: Any = None
            self.sin: Any = None

        def forward(self, x: Any, position_ids: Any) -> Any:
            if self.cos is None:
                angles = torch.arange(8, device=x.device).type_as(self.inv_freq)[:, None] * self.inv_freq
                self.cos, self.sin = angles.cos(), angles.sin()
            return self.cos[position_ids], self.sin[position_ids]

    return Table()


def _attention(job: Job, rotary: Any, distance: int) -> Any:
    """Each row of the input is a token; they are that many positions apart."""
    torch, nn = job.torch, job.torch.nn
    torch.manual_seed(0)

    def rotated(each: Any, cos: Any, sin: Any) -> Any:
        left, right = each.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def forward(self: Any, x: Any) -> Any:
        positions = torch.arange(len(x), device=x.device)[None] * distance
        cos, sin = self.rotary(x, positions)
        query, key, value = self.qkv(x)[None].chunk(3, dim=-1)
        weights = (rotated(query, cos, sin) @ rotated(key, cos, sin).transpose(1, 2) / 4).softmax(dim=-1)
        return self.head((x + (weights @ value)[0]).tanh())

    return job.model(forward, rotary=rotary, qkv=nn.Linear(16, 48), head=nn.Linear(16, 1, bias=False))


@scenario("a rotary embedding with tokens far apart", pinned=[{**_BF16, "stage": "1"}], **_HALF)
def rotary_embedding(job: Job) -> None:
    engine = job.engine(_attention(job, _rotary(job), _FAR))
    job.steps(engine, range(4))


@scenario("rotary embeddings whose results have the dtype of the frequencies, with half frequencies, or of other code")
@settings(pinned=[{**_BF16, "stage": "3"}], stage="03", **_HALF)
def rotary_embeddings_of_other_kinds(job: Job) -> None:
    half, other = _rotary(job, dtype=job.dtype), _rotary(job, module="others")
    for rotary in (_table(job, _rotary(job)), half, other):
        engine = job.engine(_attention(job, rotary, 1))
        job.steps(engine, range(3))


@scenario("a new engine resumes from a checkpoint with frequencies in half precision")
@settings(pinned=[{**_BF16, "stage": "2"}], stage="023", **_HALF)
def resumed_with_half_frequencies(job: Job) -> None:
    def make(number: int) -> Any:
        engine = job.engine(_attention(job, _rotary(job, persistent=True), 1))
        if number == 0:  # what a job without the patch has saved
            rotary = engine.module.rotary
            rotary.load_state_dict({"inv_freq": rotary.inv_freq.to(job.dtype)})
        return engine

    job.resume(make)


def _normalized(job: Job) -> None:
    nn = job.torch.nn
    job.torch.manual_seed(0)
    layers = [nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 16), nn.BatchNorm1d(16, affine=False)]
    engine = job.engine(nn.Sequential(*layers, nn.Linear(16, 1, bias=False)))
    for step in range(4):
        engine.train()
        job.train(engine, step)
        engine.eval()
        with job.torch.no_grad():
            job.note(f"step {step}: evaluation", job.loss(engine, job.batch(1000 + step)))
    for name, buffer in engine.module.named_buffers():
        job.bits(name, buffer)


@scenario("BatchNorm in training and in evaluation, in half precision")
@settings(pinned=[{**_BF16, "stage": "1"}], stage="13", **_ALIKE)
def batch_norm(job: Job) -> None:
    _normalized(job)


@scenario("BatchNorm in training and in evaluation, in fp32", pinned=[{"stage": "3"}], stage="023", precision=("fp32",))
def batch_norm_in_fp32(job: Job) -> None:
    _normalized(job)


@scenario("buffers that the model adds to half activations, and a quantized layer")
@settings(pinned=[{**_BF16, "stage": "3"}], stage="23", **_ALIKE)
def buffers_of_many_kinds(job: Job) -> None:
    torch, nn = job.torch, job.torch.nn
    torch.manual_seed(0)

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x + self.buffers_.table[: len(x)]).tanh() * self.buffers_.mask
        quantized = self.buffers_.weight.to(x.dtype) * self.buffers_.scale
        return self.head(x @ quantized + self.buffers_.inv_freq)

    held = nn.Module()
    held.register_buffer("table", torch.randn(8, 16))
    held.register_buffer("mask", (torch.arange(16) % 3 > 0).float(), persistent=False)
    held.register_buffer("weight", torch.randint(-127, 127, (16, 16), dtype=torch.int8))
    held.register_buffer("scale", torch.rand(16) / 127)
    held.register_buffer("inv_freq", torch.rand(16), persistent=False)  # of no rotary embedding
    model = job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 1, bias=False), buffers_=held)
    engine = job.engine(model)
    job.steps(engine, range(3))
    for name, buffer in engine.module.named_buffers():
        job.bits(f"{name}, {buffer.dtype}", buffer)
