"""engine.backward() with gradient accumulation, the model returns loss and logits: gradients are divided twice.

Why: since 0.18.3 the loss is no longer divided by the gradient accumulation steps (GAS): a hook on each tensor that the
    model returns divides its gradient. Where one of them was computed from another, as in {"loss": …, "logits": …}, the
    gradient passes two hooks and is divided by GAS². A part of the loss that comes from no returned tensor, such as a
    penalty on parameters, is not divided at all. Nothing fails.
How: `engine.backward(loss)` divides the loss itself, as through 0.18.2 and since 0.19.6, and the hooks leave the
    gradients of that backward pass alone, including those of other engines and those of backward passes called within
    it: by reentrant checkpoints, or by hooks such as those of cached losses. `scale_wrt_gas=False` and
    `loss.backward()` without the engine are unchanged; for the latter see dict_output_double_scaling_direct. So is a
    loss before which an output was differentiated with `create_graph`: a gradient penalty consists of what the hooks
    have divided.
Changes: with GAS > 1 and an output with loss and logits, as Hugging Face's models return it, gradients become GAS times
    larger: SGD's learning rate, gradient clipping, the logged norm and Adam's epsilon act on other numbers than before.
    Where the loss is the only returned tensor, or is computed outside, gradients stay the same except for rounding
    (none where GAS is a power of two). So do those of a backward pass that a hook calls with the gradient it was given
    as a factor; without that factor they become GAS times larger, as they are through 0.18.2 and since 0.19.6.
    A checkpoint written without the patch contains valid parameters of a job with gradients that were too small; Adam's
    moments in it are GAS and GAS² times too small. As the second catches up slowly (β₂), steps after resuming are up to
    GAS times too large for a while: warm up the learning rate again, or resume without the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_HOOK = f"{_ENGINE}._backward_prologue_per_tensor"
# a gradient that a hook has divided may be part of the next loss
_DIFFERENTIATED = "_dsfix_differentiated"
_CONTEXT = "compiled_autograd(self._is_compiled_autograd_enabled, self._compile_kwargs)"


@contextmanager
def of_loss(backward: AbstractContextManager[Any], engine: Any, divided: bool) -> Iterator[None]:
    """`backward`, around a backward pass of `engine`; divided: whether its loss is divided, so that no hook divides."""
    import torch

    before = dividers()
    # autograd passes this on to its threads, and to the backward passes called within one
    torch._C._stash_obj_in_tls(__name__, (*before, id(engine)) if divided else before)
    try:
        with backward:
            yield
    finally:
        torch._C._stash_obj_in_tls(__name__, before)


def dividers() -> tuple[int, ...]:
    """The engines that have divided the loss of the backward pass that calls this, or of an enclosing one."""
    import torch

    return torch._C._get_obj_in_tls(__name__) if torch._C._is_key_in_tls(__name__) else ()


PATCH = Patch(
    title="engine.backward() + gradient accumulation, output with loss and logits: gradients divided twice",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3,<0.19.6", "torch": ">=2.1.0.dev0"},  # older ones were not examined
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            after="gas_scaled_loss = loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss",
            code=f"from {__name__} import dividers, of_loss\n"
            f"divided = scale_wrt_gas and not vars(self).pop('{_DIFFERENTIATED}', False)\n"
            # else a hook has called this, with a loss multiplied by a gradient that is already divided
            "if divided and id(self) not in dividers():\n    loss = gas_scaled_loss",
        ),
        Edit(
            f"{_ENGINE}.backward",
            replace=_CONTEXT,
            code=f"of_loss({_CONTEXT}, self, divided)",
        ),
        Edit(
            _HOOK,
            before="return grad / self.gradient_accumulation_steps()",
            code=f"if dividers():\n    return grad\nif torch.is_grad_enabled():\n    self.{_DIFFERENTIATED} = True",
            uses=(dividers,),
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8224": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8245": "fixed in 0.19.6",
    },
    fixed_in="0.19.6",
    fixed=(Source(_HOOK, "graph_loss_scaled = _ENGINE_BACKWARD_GRAPH_TRACKER.is_current_graph_registered()"),),
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from dsfix.lab.outputs import accumulate

    return accumulate(lab, lambda engine, loss: engine.backward(loss))
