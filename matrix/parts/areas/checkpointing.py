"""deepspeed.checkpointing: what the function gives without it, with arguments and outputs of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsfix.lab.session import Lab
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public

_MODULE = "runtime.activation_checkpointing.checkpointing"


def _checked(name: str) -> Callable[[Lab, Draw], None]:
    def check(lab: Lab, draw: Draw) -> None:
        run, configure = public(f"{_MODULE}:{name}"), public(f"{_MODULE}:configure")
        options = {"partition_activations": draw.flag("partition_activations"), "profile": draw.flag("profile")}
        options["synchronize"] = draw.flag("synchronize")
        options["checkpoint_in_cpu"] = options["partition_activations"] and draw.flag("checkpoint_in_cpu")
        configure(None, **options)
        model = torch.nn.Linear(4, 4).to(lab.device)
        dropout = draw.flag("dropout")
        outputs = draw("outputs", ("tensor", "several", "with None", "integers"))
        extra = draw("an argument", (None, 2, "a", True, "mask", "list"))
        shape = draw("shape", ((2, 4), (1, 4), (0, 4), (2, 3, 4)))
        needs, autocast = draw("x needs gradient", (True, False)), draw.flag("autocast")
        draw.assume(needs or name != "checkpoint")  # documented of the reentrant kind
        twice = draw.flag("two backward passes")
        x = draw.tensor("x", shape)
        mask = (
            torch.ones(shape, dtype=torch.bool, device=lab.device)
            if extra == "mask"
            else [1, 2]
            if extra == "list"
            else extra
        )
        scalar = draw.flag("a scalar tensor")

        def function(x: Any, given: Any, factor: Any) -> Any:
            y = model(x)
            y = torch.nn.functional.dropout(y, 0.5) if dropout else y
            y = y * given if isinstance(given, (torch.Tensor, int)) else y
            y = y * factor if factor is not None else y
            if outputs == "tensor":
                return y
            return y, {"several": y * 2, "with None": None, "integers": torch.arange(3, device=lab.device)}[outputs]

        def measured(call: Callable[..., Any]) -> Any:
            torch.manual_seed(1)
            given = x.detach().clone().to(lab.device).requires_grad_(needs)
            factor = torch.tensor(2.0, device=lab.device, requires_grad=True) if scalar else None
            model.zero_grad()
            with torch.autocast(lab.device.type, torch.bfloat16, enabled=autocast):
                found = call(given * 1.0, mask, factor)
            first = found if torch.is_tensor(found) else found[0]
            if first.requires_grad:
                for number in range(2 if twice else 1):
                    first.float().pow(2).sum().backward(retain_graph=twice and not number)
            return found, [each if each is None else each.grad for each in (given, factor, *model.parameters())]

        try:
            got = measured(lambda *given: run(function, *given))
        finally:
            configure(None)
        wanted = measured(function)
        same(got[0], wanted[0], "output")
        for number, (one, other) in enumerate(zip(got[1], wanted[1])):
            if other is not None:
                same(one, other, f"gradient {number}", 0.02 if autocast else 0.0)

    return check


for _name in ("checkpoint", "non_reentrant_checkpoint"):
    part(f"checkpointing/{_name}", "the function without it", examples=150, device="cuda")(_checked(_name))
