"""Autograd functions with another `apply`, which sees the caller's gradient mode and the weights, and their tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from dsfix.patch import CannotTell

if TYPE_CHECKING:
    from dsfix.lab import Lab


def with_apply(original: Any, apply: Callable[..., Any]) -> Any:
    """A class like `original`, of whose functions `apply` alone differs; edits of the others hold for both."""

    def of_class(cls: Any, *args: Any) -> Any:
        return apply(*args) if cls is changed else super(changed, cls).apply(*args)  # a script's own function

    body = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    body.update({name: vars(original)[name] for name in ("forward", "backward")})
    changed = type(original)(original.__name__, (original,), {**body, "apply": classmethod(of_class)})
    return changed


def module_of(lab: Lab, name: str = "TiledMLP") -> Any:
    """DeepSpeed's module of tiled computation, if it has `name`."""
    version = lab.deepspeed.__version__
    try:
        from deepspeed.runtime.sequence_parallel import (
            ulysses_sp,
        )
    except ImportError:
        raise CannotTell(f"deepspeed {version} has no tiled computation") from None
    if not hasattr(ulysses_sp, name):
        raise CannotTell(f"deepspeed {version} has no {name}")
    return ulysses_sp


def fpdt(lab: Lab) -> Any:
    """DeepSpeed's module of FPDT, whose activation function is not compiled for this device."""
    lab.torch._dynamo.config.disable = True
    version = lab.deepspeed.__version__
    try:
        from deepspeed.sequence import fpdt_layer
    except ImportError:
        raise CannotTell(f"deepspeed {version} has no FPDT") from None
    return fpdt_layer


def train(lab: Lab, model: Any, batches: Any, learning_rate: float, stage: int = 0, accumulated: int = 1) -> Any:
    """The parameters after training with SGD."""
    config = {
        "gradient_accumulation_steps": accumulated,
        "optimizer": {"type": "SGD", "params": {"lr": learning_rate}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])
    for batch in batches:
        engine.backward(engine(*(each.to(lab.device) for each in batch)))
        engine.step()
    return lab.parameters(engine)
