"""Half precision, autocast and fp32 within it."""

from __future__ import annotations

import importlib
from typing import Any

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings

# releases before 0.17.2 gather in fp32; plain PyTorch is in fp32 throughout
_HERE: Any = {"stage": "3", "precision": ("fp32",), "reference": False}
_BF16 = {"enabled": True, "dtype": "bfloat16"}


@scenario("linear layers, ZeRO-3 with torch_autocast in bf16", pinned=[{"stage": "3", "accumulation": "2"}], **_HERE)
def autocast_in_bf16(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    # all of one dtype, which 0.17.2 needs, and nothing of an odd size: nothing initializes its padding
    layers = [torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1, bias=False)]
    engine = job.engine(torch.nn.Sequential(*layers), torch_autocast=_BF16)
    job.steps(engine, range(3))


_AUTOCAST: Any = {
    "reference": False,
    "stage": "123",
    "precision": ("fp32",),
    "ranks": ("1", "2"),
    "accumulation": ("1",),  # other patches round sums of micro-batches differently, and there is no reference
    "clipping": ("off",),
    "optimizer": ("SGD", "AdamW"),
}
_FP16_CAST = {"enabled": True, "dtype": "float16"}


def _cast(job: Job, clip: float, factor: float = 1.0, lowered: float = 0.0) -> None:
    """Train in torch_autocast's fp16; lowered: the loss scale that the script sets after each skipped step."""
    torch = job.torch
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1, bias=False)]
    engine = job.engine(torch.nn.Sequential(*layers), torch_autocast=_FP16_CAST, gradient_clipping=clip)
    skipped = 0
    for step in range(4):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch) * factor)
            engine.step()
        if lowered and engine.skipped_steps > skipped:
            skipped = engine.skipped_steps
            engine.optimizer.torch_autocast_gradscaler.update(lowered)
        job.bits(f"step {step}: skipped steps", int(engine.skipped_steps))
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


@scenario("torch_autocast in fp16, the script turns clipping off")
@settings(
    works_around=("autocast_fp16_clips_scaled_gradients",),
    pinned=[{"stage": "1"}],
    release="0.18.9",
    **_AUTOCAST,
)
def autocast_in_fp16(job: Job) -> None:
    _cast(job, clip=0.0, factor=0.01)


@scenario("torch_autocast in fp16, the script's clipping has the loss scale")
@settings(
    works_around=("autocast_fp16_clips_scaled_gradients",),
    pinned=[{"stage": "1", "ranks": "2"}, {"stage": "3"}],
    release="0.18.9",
    **_AUTOCAST,
)
def autocast_clip_scaled(job: Job) -> None:
    _cast(job, clip=65536 * 0.1, factor=0.01)


@scenario("torch_autocast in fp16, the script lowers the loss scale after a skipped step")
@settings(
    works_around=("autocast_fp16_overflow_keeps_scale", "autocast_fp16_clips_scaled_gradients"),
    pinned=[{"stage": "2", "ranks": "2"}, {"stage": "3"}],
    release="0.19.8",
    **_AUTOCAST,
)
def autocast_scale_lowered(job: Job) -> None:
    _cast(job, clip=0.0, factor=100.0, lowered=64.0)


_FP16 = {"stage": "1", "precision": "fp16"}
_OVERLAP = {**_FP16, "overlap_comm": "true"}
_PINNED = [
    *({**_FP16, "ranks": ranks, "accumulation": micros} for ranks in "12" for micros in "13"),
    *({**_OVERLAP, "ranks": ranks, "accumulation": micros} for ranks in "12" for micros in "13"),
    {**_OVERLAP, "ranks": "4", "accumulation": "2", "buckets": "small", "optimizer": "AdamW"},
    *({**_OVERLAP, "ranks": ranks, "accumulation": "2", "offload": "optimizer"} for ranks in "12"),
    {**_OVERLAP, "precision": "bf16", "accumulation": "2", "offload": "optimizer"},
]


@scenario("half precision, with gradients accumulated in fp32", pinned=_PINNED, stage="1", precision=("fp16",))
def accumulated_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP(), data_types={"grad_accum_dtype": "fp32"})
    job.steps(engine, range(4))


_OFFLOADED: Any = {"stage": "3", "offload": ("optimizer", "optimizer, param"), "precision": ("bf16", "fp16")}
_HALF = {"stage": "3", "offload": "optimizer", "precision": "bf16", "accumulation": "2", "clipping": "on"}


@scenario("linear layers, one of them frozen, in half precision with offload", pinned=[_HALF], **_OFFLOADED)
def half_offloaded(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    frozen, *trained = (torch.nn.Linear(16, 16) for _ in range(3))
    frozen.requires_grad_(False)
    layers = [trained[0], frozen, torch.nn.Tanh(), trained[1], torch.nn.Linear(16, 2, bias=False)]
    model = torch.nn.Sequential(*layers)
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    job.steps(engine, range(3))


_FITS: Any = {"stage": "0", "precision": ("fp32",)}


@scenario("a job in fp32 without ZeRO resumes, and its successor resumes again")
@settings(
    pinned=[{"accumulation": "2"}, {"ranks": "1"}, {}, {"ranks": "1", "accumulation": "2", "optimizer": "AdamW"}],
    **_FITS,
)
def resumed_twice_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(6):
        if step in (2, 4):
            job.save(engine, f"step{step}")
            engine = job.engine(job.MLP(seed=step))
            job.load(engine, f"step{step}")
            job.look(engine, f"loaded before step {step}")
        job.train(engine, step)


@scenario("in fp32 without ZeRO the weights alone are loaded, then with what else there is, then all")
@settings(pinned=[{"optimizer": "AdamW"}, {"ranks": "1", "accumulation": "2", "optimizer": "client's AdamW"}], **_FITS)
def loaded_in_parts_in_fp32(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(2))
    job.save(engine, "two")
    engine = job.engine(job.MLP(seed=1))
    job.load(engine, "two", module_only=True)
    job.look(engine, "the weights")
    job.train(engine, 2)
    job.load(engine, "two", optimizer=False)
    job.look(engine, "without the optimizer")
    job.train(engine, 3)
    job.load(engine, "two")
    job.look(engine, "all")
    job.steps(engine, range(4, 6))


_FUSED: Any = {"stage": "0", "precision": ("fp16", "bf16"), "optimizer": ("client's AdamW",)}
_FUSED_PINNED = [{"precision": "fp16", "optimizer": "client's AdamW"}]


def _engine(job: Job, model: Any) -> Any:
    from dsfix.patches import _half as half

    def fused(given: list[Any]) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    return job.engine(model, optimizer=fused)


@scenario("FusedAdam", pinned=_FUSED_PINNED, **_FUSED)
def fused_adam(job: Job) -> None:
    engine = _engine(job, job.MLP())
    job.steps(engine, range(4))


@scenario("FusedAdam, with a frozen half among the parameters it is given", pinned=_FUSED_PINNED, **_FUSED)
def fused_adam_frozen(job: Job) -> None:
    model = job.Branches()
    model.second.requires_grad_(False)
    engine = _engine(job, model)
    job.steps(engine, range(4), lambda batch: job.loss(engine, batch, True))


@scenario("FusedAdam resumes from a checkpoint", pinned=_FUSED_PINNED, **_FUSED)
def fused_adam_resumed(job: Job) -> None:
    job.resume(lambda seed: _engine(job, job.MLP(seed=seed)))


@scenario("FusedAdam, and a loss that is nan")
@settings(pinned=_FUSED_PINNED, stage="0", precision=("fp16",), optimizer=_FUSED["optimizer"])
def fused_adam_nan_loss(job: Job) -> None:
    engine = _engine(job, job.MLP())
    for step in range(4):
        factor = float("nan") if step == 1 else 1.0
        job.train(engine, step, lambda batch, factor=factor: job.loss(engine, batch) * factor)


_TWO_LOSSES: Any = {"stage": "1", "precision": ("fp16",), "ranks": ("2", "4"), "offload": ("none",)}
_ALIKE = [{**_FP16, "ranks": "2", "overlap_comm": overlap} for overlap in ("false", "true")]


@scenario(
    "gradients accumulated in fp32, two losses, the second without one head",
    release="0.18.9",
    pinned=_ALIKE,
    **_TWO_LOSSES,
)
def two_losses_accumulated_in_fp32(job: Job) -> None:
    nn = job.torch.nn

    def forward(self: Any, x: Any) -> Any:
        x = self.body(x)
        return self.left(x), self.right(x)

    widths = {"body": 16, "left": 1, "right": 1}
    model = job.model(forward, **{name: nn.Linear(16, width) for name, width in widths.items()})
    engine = job.engine(model, data_types={"grad_accum_dtype": "fp32"})
    for step in range(4):
        for micro in range(job.accumulation):
            inputs, targets = job.batch(10 * step + micro)
            if step < 2:  # all ranks have the same data
                job.torch.manual_seed(10 * step + micro)
                inputs = job.torch.randn(4, 16).to(inputs)
                targets = inputs[:, :1].float()
            left, right = engine(inputs)
            engine.backward((left + right).float().square().mean(), retain_graph=True)
            engine.backward(nn.functional.mse_loss(left.float(), targets))
            engine.step()
        job.look(engine, f"step {step}")
