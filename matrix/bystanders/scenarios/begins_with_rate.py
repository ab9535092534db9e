"""Optimizers of scripts whose state begins with the learning rate, or that change torch's Adagrad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_PINNED = [{"stage": "1", "ranks": "1"}, {"stage": "3"}, {"stage": "2", "offload": "optimizer"}]
_FITS: Any = {"precision": ("fp32",), "optimizer": ("SGD",), "clipping": ("off",)}


@scenario("an optimizer with a rate for each element, which begins with the group's", pinned=_PINNED, **_FITS)
def rates_of_elements(job: Job) -> None:
    class Rates(job.torch.optim.Optimizer):  # type: ignore[name-defined,misc]
        """A rate grows with a gradient of the sign of the last one, and shrinks otherwise."""

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is None:
                        continue
                    gradient, state = weight.grad, self.state[weight]
                    if not state:
                        state["rates"] = job.torch.full_like(weight, group["lr"])
                        state["last"] = job.torch.zeros_like(weight)
                    state["rates"].mul_(1 + 0.2 * (gradient * state["last"]).sign())
                    state["last"].copy_(gradient)
                    with job.torch.no_grad():
                        weight.sub_(state["rates"] * (gradient + group["decay"] * weight))

    engine = job.engine(job.MLP(), optimizer=lambda given: Rates(given, {"lr": 0.05, "decay": 0.1}))
    for step in range(3):
        job.train(engine, step)


# DeepSpeed replaces it by torch's own, with ZeRO
@scenario(
    "a subclass of torch's Adagrad with a momentum", pinned=_PINNED[::2], reference=False, stage="012",
    **{**_FITS, "accumulation": ("1",)},
)  # fmt: skip
def own_adagrad(job: Job) -> None:
    class Adagrad(job.torch.optim.Adagrad):  # type: ignore[name-defined,misc]
        def __init__(self, given: Any, **options: Any) -> None:
            super().__init__(given, **options)
            for group in self.param_groups:
                for weight in group["params"]:
                    self.state[weight]["moved"] = job.torch.zeros_like(weight)

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        moved = self.state[weight]["moved"].mul_(0.9).add_(weight.grad)
                        weight.grad.copy_(moved)
            super().step()

    engine = job.engine(job.MLP(), optimizer=lambda given: Adagrad(given, lr=0.01))
    for step in range(3):
        job.train(engine, step)
