"""A parameter in fp32 beside frozen ones in bf16, trained with ZeRO-3 on two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LEARNING_RATE = 0.1
_STEPS = 2


def train(lab: Lab, errors: Sequence[str], autocast: bool = False) -> str:
    """errors: what the bug says. autocast: with torch_autocast, and both dtypes in one layer."""
    lab.require_ranks(2)
    torch = lab.torch
    steps = [[lab.models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    width = steps[0][0][0].shape[1]
    like = torch.zeros(0, device=lab.device)

    class Adapter(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((width, width), 0.1))

        def forward(self, inputs: Any) -> Any:
            return inputs @ self.weight

    class Adapted(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(width, width)
            self.to(torch.bfloat16).requires_grad_(False)
            self.adapter = Adapter()

        def forward(self, inputs: Any) -> Any:
            return super().forward(inputs.bfloat16()).float() + self.adapter(inputs)

    def make() -> Any:
        torch.manual_seed(0)
        if not autocast:
            return Adapted()
        model = torch.nn.Linear(width, width)
        model.weight = torch.nn.Parameter(model.weight.detach().bfloat16(), requires_grad=False)
        return model

    def loss(model: Any, inputs: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(model(inputs).float().mean(1, keepdim=True), targets)

    def right_loss(*batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return loss(reference, *batch)

    def trainable(model: Any) -> list[Any]:
        return [each for each in model.parameters() if each.requires_grad]

    model, reference = make(), make()
    right = lab.reference.train(reference, steps, right_loss, "SGD", lr=_LEARNING_RATE).parameters
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3},
        **({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}} if autocast else {}),
    }
    try:
        engine = lab.initialize(model, config, model_parameters=trainable(model))
        for batches in steps:
            engine.backward(loss(engine, *(tensor.to(like) for tensor in batches[lab.rank])))
            engine.step()
        with lab.deepspeed.zero.GatheredParameters(list(model.parameters())):
            parameters = {name: each.detach().cpu().clone() for name, each in model.named_parameters()}
    except (AssertionError, RuntimeError, TypeError) as error:
        if any(text in str(error) for text in errors):
            raise BugPresent(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        raise
    name = next(name for name, each in model.named_parameters() if each.requires_grad)
    difference = lab.reference.largest_difference({name: parameters[name]}, {name: right[name]})
    assert difference.relative < 5e-3, str(difference)
    assert all(torch.equal(parameters[each], right[each]) for each in parameters if each != name)
    return f"after {_STEPS} steps {name} matches plain PyTorch within {difference.relative:.1e}"
