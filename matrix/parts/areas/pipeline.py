"""Pipelines of two stages: training and evaluation, as the layers one after the other."""

from __future__ import annotations

from typing import Any

import torch

from dsfix.lab.session import Lab
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part


class Tied(torch.nn.Linear):
    """A linear layer whose weight two places share."""


def _layers(kind: str) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    first, last = Tied(6, 6), torch.nn.Linear(6, 6)
    return [first, torch.nn.Linear(6, 6), torch.nn.Tanh(), first if kind == "tied" else last]


@part("pipeline/PipelineEngine", "the layers one after the other in plain PyTorch", examples=14, ranks=2, device="cuda")
def _pipeline(lab: Lab, draw: Draw) -> None:
    pipe = lab.deepspeed.pipe
    kind, stages = draw("layers", ("plain", "tied")), draw("stages", (1, 2))
    precision = draw("precision", ("fp32", "bf16"))
    micro, clip = draw.integer("micro-batches", 1, 3), draw("clipping", (0.0, 0.05))
    interval = draw("activation_checkpoint_interval", (0, 1))
    zero = draw("stage", (0, 1))
    draw.assume(not (precision == "bf16" and zero == 0))
    mean = lambda y, target: (y - target).pow(2).mean()  # noqa: E731
    plain = _layers(kind)
    given: list[Any] = _layers(kind)
    if kind == "tied":
        spec = pipe.TiedLayerSpec("shared", Tied, 6, 6)
        given = [spec, *given[1:3], spec]
    torch.manual_seed(0)
    module = pipe.PipelineModule(
        layers=given,
        num_stages=stages,
        loss_fn=mean,
        partition_method=draw("partition_method", ("uniform", "parameters")),
        activation_checkpoint_interval=interval,
    )
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": micro,
        "gradient_clipping": clip,
        "optimizer": {"type": "SGD", "params": {"lr": 0.2, "momentum": 0.9}},
        "steps_per_print": 1000,
    }
    if zero:
        config["zero_optimization"] = {"stage": 1}
    if precision == "bf16":
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
    model = torch.nn.Sequential(*plain)
    if kind == "tied" and precision == "fp32":
        shared = module.tied_modules["shared"] if "shared" in getattr(module, "tied_modules", {}) else None
        draw.assume(shared is not None)
        with torch.no_grad():  # the specification made its own
            plain[0].weight.copy_(shared.weight.cpu())
            plain[0].bias.copy_(shared.bias.cpu())
    draw.assume(kind != "tied" or precision == "fp32")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    copies = 2 // stages
    within = 1e-3 if precision == "fp32" else 0.05
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        made = [[torch.randn(2, 6, generator=generator) for _ in range(2)] for _ in range(micro * copies)]
        optimizer.zero_grad()
        loss = torch.stack([mean(model(x), y) for x, y in made]).mean()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        own = made[lab.rank :: 2] if copies == 2 else made
        half = torch.bfloat16 if precision == "bf16" else torch.float32
        own = [(x.to(half), y.to(half)) for x, y in own]
        got = engine.train_batch(iter([tuple(each) for each in own]))
        same(float(got), float(loss), f"loss of step {step}", within)
        if draw.flag(f"evaluate after {step}"):
            with torch.no_grad():
                wanted = torch.stack([mean(model(x), y) for x, y in made]).mean()
            for _ in range(2):
                actual = engine.eval_batch(iter([tuple(each) for each in own]), num_micro_batches=micro)
                same(float(actual), float(wanted), f"evaluation after step {step}", within)
