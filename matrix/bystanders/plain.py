"""DeepSpeed's engine as documented, in plain PyTorch and fp32. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import distributed, nn


class Plain:
    """Gradients accumulate in `.grad`; at the boundary they are averaged over the ranks, clipped and applied.

    Trainable parameters without a gradient get a zero gradient; with ZeRO, so does every parameter that was trainable
    when the engine was created. half: whether the job trains in half precision, which skips steps with non-finite
    gradients.
    """

    saved: ClassVar[dict[str, Any]] = {}  # like files, shared by all engines of the process

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, config: Mapping[str, Any], half: bool
    ) -> None:
        self.module, self.optimizer = module, optimizer
        self._accumulation = int(config.get("gradient_accumulation_steps", 1))
        self._clip = float(config.get("gradient_clipping", 0.0))
        self._half = half
        self._micro_steps = 0
        self._boundary: bool | None = None
        self._norm: float | None = None
        self.skipped_steps = self.global_steps = 0
        zero = int(config.get("zero_optimization", {}).get("stage", 0)) > 0
        self._stepped = {id(p) for p in module.parameters() if p.requires_grad and zero}

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.module(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["module"], name)  # train, eval, named_parameters, ...

    @property
    def micro_steps(self) -> int:
        return self._micro_steps

    def gradient_accumulation_steps(self) -> int:
        return self._accumulation

    def get_global_grad_norm(self) -> float | None:
        return self._norm

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self._micro_steps + 1) % self._accumulation == 0 if self._boundary is None else self._boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self._boundary = is_boundary

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        (loss / self._accumulation if scale_wrt_gas else loss).backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call,unused-ignore]
        return loss

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def step(self) -> None:
        if self.is_gradient_accumulation_boundary():
            self._step()
        self._micro_steps += 1

    def _step(self) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            if parameter.grad is None and (parameter.requires_grad or id(parameter) in self._stepped):
                parameter.grad = torch.zeros_like(parameter)
            self._average(parameter)
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm() if gradients else torch.zeros(())
        self._norm = float(norm)
        if self._half and not torch.isfinite(norm):
            self.skipped_steps += 1
        else:
            if self._clip and norm > self._clip:
                for gradient in gradients:
                    gradient.mul_(self._clip / (norm + 1e-6))
            self.optimizer.step()
        self.global_steps += 1
        self.optimizer.zero_grad()

    def _average(self, parameter: torch.Tensor) -> None:
        """Average the gradient over the ranks; a missing one counts as zeros, unless it is missing on all ranks."""
        if distributed.get_world_size() == 1:
            return
        has = torch.tensor([parameter.grad is not None], dtype=torch.float32)
        distributed.all_reduce(has)
        if not has.item():
            return
        mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        total = mine.detach().cpu()
        distributed.all_reduce(total)
        parameter.grad = (total / distributed.get_world_size()).to(parameter.device)

    def save(self, tag: str) -> None:
        self.saved[tag] = _copy((self.module.state_dict(), self.optimizer.state_dict(), self.global_steps))

    def load(self, tag: str, optimizer: bool = True) -> None:
        """Restore the weights and, with `optimizer`, its state. The micro-batch count continues."""
        weights, state, steps = _copy(self.saved[tag])
        self.module.load_state_dict(weights)
        if optimizer:
            self.optimizer.load_state_dict(state)
        self.global_steps = steps
        self.optimizer.zero_grad()

    def destroy(self) -> None:
        pass


def _copy(state: Any) -> Any:
    """A copy on the CPU: copy.deepcopy does not support the emulated device."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _copy(each) for key, each in state.items()}
    return type(state)(_copy(each) for each in state) if isinstance(state, (list, tuple)) else state
