"""Elastic checkpoints of optimizers with states that are smaller than the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_BLOCK = 3  # elements that share a scale
_FITS: Any = {
    "stage": "12",
    "offload": ("none",),
    "precision": ("fp32",),
    "accumulation": ("1",),
    "optimizer": ("client's SGD",),
    "reference": False,  # the states belong to a rank's partition
}


def _resume(job: Job, name: str, state_of: Any) -> None:
    class Scaled(job.torch.optim.SGD):  # type: ignore[name-defined,misc]
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._scale(parameter)
            return super().step(closure)

        def _scale(self, parameter: Any) -> None:
            """The larger the gradients so far, the smaller the steps."""
            found = state_of(parameter.grad)
            state = self.state[parameter].setdefault(name, job.torch.zeros_like(found))
            job.torch.maximum(state, found, out=state)
            parameter.grad.div_(1 + state.max())

    elastic = {"zero_optimization": {"elastic_checkpoint": True}}
    job.resume(lambda seed: job.engine(job.MLP(seed=seed), optimizer=lambda given: Scaled(given, lr=0.05), **elastic))


@scenario(
    "elastic_checkpoint with an optimizer that keeps one number for all weights",
    pinned=[{"stage": "1", "optimizer": "client's SGD"}],
    **_FITS,
)
def elastic_one_number(job: Job) -> None:
    _resume(job, "largest", lambda gradient: gradient.abs().max().reshape(1))


@scenario(
    "elastic_checkpoint with an optimizer that keeps one number per three weights, as 8-bit optimizers do per block",
    pinned=[{"stage": "2", "optimizer": "client's SGD"}],
    **_FITS,
)
def elastic_blocks(job: Job) -> None:
    def largest(gradient: Any) -> Any:
        padded = job.torch.nn.functional.pad(gradient.abs().flatten(), (0, -gradient.numel() % _BLOCK))
        return padded.view(-1, _BLOCK).amax(dim=1)

    _resume(job, "largest", largest)
