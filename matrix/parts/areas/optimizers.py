"""Optimizers of the config: each option, against torch's optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsfix.lab.kernels import provide_cpu_adam, provide_fused_adam
from dsfix.lab.session import Lab
from matrix.parts.areas.engine import Net
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part


def _adam(draw: Draw) -> dict[str, Any]:
    betas = [draw.number("beta1", 0.5, 0.9), draw.number("beta2", 0.9, 0.99)]
    return {"betas": betas, "eps": draw("eps", (1e-8, 1e-3)), "weight_decay": draw("weight_decay", (0.0, 0.1))}


#: type in the config, and class -> options of the config, those of the reference
_KINDS: Mapping[str, tuple[str, Callable[[Draw], dict[str, Any]], Callable[[Mapping[str, Any]], Any]]] = {
    "Adam": ("Adam", _adam, lambda o: torch.optim.Adam if o.get("adam_w_mode") is False else torch.optim.AdamW),
    "AdamW": ("AdamW", _adam, lambda o: torch.optim.AdamW),
    "SGD": (
        "SGD",
        lambda draw: {
            "momentum": draw("momentum", (0.0, 0.9)),
            "weight_decay": draw("weight_decay", (0.0, 0.1)),
            "nesterov": False,
            "dampening": draw("dampening", (0.0, 0.5)),
        },
        lambda o: torch.optim.SGD,
    ),
    "Adagrad": (
        "Adagrad",
        lambda draw: {"weight_decay": draw("weight_decay", (0.0, 0.1)), "eps": 1e-6},
        lambda o: torch.optim.Adagrad,
    ),
}


def _optimizer(name: str) -> Callable[[Lab, Draw], None]:
    def check(lab: Lab, draw: Draw) -> None:
        kind, drawn, chosen = _KINDS[name]
        options = {"lr": draw("lr", (0.01, 0.1)), **drawn(draw)}
        given = dict(options)
        stage, offload = draw("stage", (0, 1, 2, 3)), False
        if stage:
            offload = draw.flag("offload")
        if kind in ("Adam", "AdamW"):
            given["torch_adam"] = draw.flag("torch_adam")
        if kind == "Adam":
            options["adam_w_mode"] = given["adam_w_mode"] = draw("adam_w_mode", (True, False))
        draw.assume(kind != "Adagrad" or not offload)  # compiles a kernel
        provide_fused_adam(lab)
        provide_cpu_adam(lab)
        config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": kind, "params": given}}
        if stage:
            config["zero_optimization"] = {
                "stage": stage,
                **({"offload_optimizer": {"device": "cpu"}} if offload else {}),
            }
        torch.manual_seed(0)
        model, plain = Net(), Net()
        plain.load_state_dict(model.state_dict())
        optimizer = chosen(options)(
            [parameter for parameter in plain.parameters() if parameter.requires_grad],
            **{key: value for key, value in options.items() if key != "adam_w_mode"},
        )
        engine = lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])
        rate = draw("rate of the second step", (None, 0.005))
        for step in range(3):
            if step == 1 and rate is not None:
                for each in (optimizer, engine.optimizer):
                    for group in each.param_groups:
                        group["lr"] = rate
            x = torch.randn(2, 6, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            plain(x).pow(2).mean().backward()
            optimizer.step()
            engine.backward(engine(x.to(lab.device)).pow(2).mean())
            engine.step()
        wanted = {name: each.detach() for name, each in plain.named_parameters()}
        same(lab.parameters(engine), wanted, "weights", 2e-3)

    return check


for _name in _KINDS:
    part(f"optimizers/{_name}", f"torch.optim.{_name}", examples=16, device="cuda")(_optimizer(_name))
