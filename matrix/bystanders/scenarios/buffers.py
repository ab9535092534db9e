"""Models with buffers, which half precision casts too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

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
    for step in range(4):
        job.train(engine, step)


@scenario(
    "rotary embeddings whose results have the dtype of the frequencies, with half frequencies, or of other code",
    pinned=[{**_BF16, "stage": "3"}],
    stage="03",
    **_HALF,
)
def rotary_embeddings_of_other_kinds(job: Job) -> None:
    half, other = _rotary(job, dtype=job.dtype), _rotary(job, module="others")
    for rotary in (_table(job, _rotary(job)), half, other):
        engine = job.engine(_attention(job, rotary, 1))
        for step in range(3):
            job.train(engine, step)


@scenario(
    "a new engine resumes from a checkpoint with frequencies in half precision",
    pinned=[{**_BF16, "stage": "2"}],
    stage="023",
    **_HALF,
)
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


@scenario(
    "BatchNorm in training and in evaluation, in half precision",
    pinned=[{**_BF16, "stage": "1"}],
    stage="13",
    **_ALIKE,
)
def batch_norm(job: Job) -> None:
    _normalized(job)


@scenario("BatchNorm in training and in evaluation, in fp32", pinned=[{"stage": "3"}], stage="023", precision=("fp32",))
def batch_norm_in_fp32(job: Job) -> None:
    _normalized(job)


@scenario(
    "buffers that the model adds to half activations, and a quantized layer",
    pinned=[{**_BF16, "stage": "3"}],
    stage="23",
    **_ALIKE,
)
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
    for step in range(3):
        job.train(engine, step)
    for name, buffer in engine.module.named_buffers():
        job.bits(f"{name}, {buffer.dtype}", buffer)
