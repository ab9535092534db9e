"""engine.backward() with gradient accumulation, the model returns loss and logits: gradients are divided twice.

Why: since 0.18.3 the loss is no longer divided by the gradient accumulation steps (GAS): a hook on each tensor that the
    model returns divides its gradient. Where one of them was computed from another, as in {"loss": …, "logits": …}, the
    gradient passes two hooks and is divided by GAS². A part of the loss that comes from no returned tensor, such as a
    penalty on parameters, is not divided at all. Nothing fails. accelerate's `backward(loss)` calls the engine's.
How: `engine.backward(loss)` divides the loss itself, as through 0.18.2 and since 0.19.6, and the hooks of engines with
    the same GAS do not change that pass. Where the graph has parts with another divisor (another GAS, the script's own
    head, a reentrant checkpoint) or over 3,000 operations (with a warning), and after `create_graph`, the hooks divide
    as before. `scale_wrt_gas=False` and `loss.backward()` stay (dict_output_double_scaling_direct).
Changes: with GAS > 1 and loss and logits in the output, gradients become GAS times larger, and with them the norm,
    clipping and SGD's steps; elsewhere they change by rounding at most. In a checkpoint written without the patch
    Adam's moments are too small: resume with a warm-up of the learning rate, or without the optimizer's state.
Workaround: The script multiplies the loss by the GAS. A loss that a model returned with what it was computed from keeps
    DeepSpeed's own division, with a warning, if all of it was multiplied by that number, perhaps with others, and
    perhaps added to others. A factor in a hook or a compiled function, or a differentiated tensor, is not detected and
    must be removed. The loss is computed from the logits, is all that the model returns, or is divided by the script,
    with `scale_wrt_gas=False`: these stay right. With `loss.backward()` the factor must be removed.
"""

from __future__ import annotations

import collections
import functools
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import ran, took_effect

from .._shared import saved

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_HOOK = f"{_ENGINE}._backward_prologue_per_tensor"
# a gradient that a hook has divided may be part of the next loss
_DIFFERENTIATED = "_dsfix_differentiated"
# of an engine: whether its `backward` leaves the division to the hooks, for dict_output_double_scaling_direct
_BY_HOOKS = "_dsfix_divided_by_hooks"
_CONTEXT = "compiled_autograd(self._is_compiled_autograd_enabled, self._compile_kwargs)"
_MARK = "dsfix_returned"  # in a node's metadata: the engines that have returned its outputs
_NODES = 3000
_LOOKED = "_dsfix_looked"  # of an engine: in how many backward passes it was looked for what the patch changes
_LOOKS = 4
_LAST = 32  # operations between a loss and its factor
_THROUGH = frozenset(
    f"{name}Backward0"
    for name in (
        *("Add", "Sub", "Mul", "Div", "Neg", "Sum", "Mean", "Clone", "ToCopy"),
        *("View", "ReshapeAlias", "Squeeze", "Unsqueeze"),
    )
)
# autograd's numbers of marked nodes: asking each node for its metadata takes longer than all the rest
_marked: collections.OrderedDict[int, None] = collections.OrderedDict()
_MARKED = 10_000
# what torch keeps of `_dividers`: few, and they stay
_kept: dict[tuple[tuple[int, int], ...], tuple[tuple[tuple[int, int], ...]]] = {}


def returned(manager: Any, tensor: Any) -> None:
    """Note which engine has returned a tensor."""
    node, engine = tensor.grad_fn, getattr(manager.preprocess_per_tensor_fn, "__self__", None)
    if engine is None:  # the hooks are a script's own
        return
    node.metadata.setdefault(_MARK, {}).setdefault(tensor.output_nr, []).append(weakref.ref(engine))
    _marked[node._sequence_nr()] = None
    if len(_marked) > _MARKED:
        _marked.popitem(last=False)


def divides_loss(engine: Any, loss: Any, asked: bool) -> bool:
    """Whether `engine.backward(loss)` divides the loss, not the hooks; asked: `scale_wrt_gas`."""
    differentiated = vars(engine).pop(_DIFFERENTIATED, False)
    steps = engine.gradient_accumulation_steps()
    may = asked and not differentiated
    if may and steps > 1 and not inside(engine) and _undone(engine, steps, loss):
        may = False
    divides = may and (steps == 1 or inside(engine) or _alike(engine, steps, loss))
    setattr(engine, _BY_HOOKS, may and not divides)
    if divides and steps > 1:
        ran(__name__)
    if divides and steps > 1 and _is_first(engine) and _twice(engine, loss):
        took_effect(__name__, "gradients were divided by the accumulation steps, %s, once instead of twice", steps)
    return divides


def _is_first(engine: Any) -> bool:
    """Whether this is one of the engine's first backward passes."""
    looked = vars(engine).get(_LOOKED, 0)
    if looked < _LOOKS:
        setattr(engine, _LOOKED, looked + 1)
    return bool(looked < _LOOKS)


def _twice(engine: Any, loss: Any) -> bool:
    """Whether a gradient of this loss passes two hooks of the engine."""
    outputs = _outputs(engine, [(loss.grad_fn, loss.output_nr)])
    behind = [each for node, _ in outputs for each in node.next_functions]
    return any(_owners(*each).count(engine) > 1 for each in outputs) or bool(_outputs(engine, behind))


def _owners(node: Any, number: int) -> list[Any]:
    """The engines that have returned this output of a node."""
    if node is None or node._sequence_nr() not in _marked:
        return []
    found = [engine() for engine in node.metadata.get(_MARK, {}).get(number, ())]
    return [engine for engine in found if engine is not None]


def _undone(engine: Any, steps: int, loss: Any) -> bool:
    """Whether the script multiplies by the steps all of a loss that comes from an output computed from another one."""
    nodes = [(loss.grad_fn, loss.output_nr, 1.0)]
    multiplied: list[tuple[Any, int]] = []
    others: list[tuple[Any, int]] = []
    seen = 0
    while nodes:
        node, number, product = nodes.pop()
        seen += 1
        if node is None:
            continue
        if seen > _LAST or _owners(node, number) or node.name() not in _THROUGH:
            others.append((node, number))
            continue
        factor = _factor(node)
        product *= factor
        if math.isclose(factor, steps) or math.isclose(product, steps):
            multiplied += node.next_functions
        else:
            nodes += [(*following, product) for following in node.next_functions]
    if not multiplied or _outputs(engine, others):
        return False
    behind = [each for node, _ in _outputs(engine, multiplied) for each in node.next_functions]
    if not _outputs(engine, behind):
        return False
    _warn_of_factor(steps)
    return True


def _factor(node: Any) -> float:
    """The number on the CPU by which an operation multiplies; 1 if there is none."""
    if node.name() == "MulBackward0":
        (first, _), (second, _) = node.next_functions
        number = saved(node, "other") if second is None else saved(node, "self") if first is None else None
        return float(number) if number is not None and number.is_cpu else 1.0
    if node.name() == "DivBackward0" and node.next_functions[1][0] is None:
        number = saved(node, "other")
        return 1 / (float(number) or math.inf) if number is not None and number.is_cpu else 1.0
    return 1.0


def _outputs(engine: Any, nodes: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """The engine's outputs that are reached from the nodes without passing another one."""
    nodes, found = list(nodes), []
    seen: set[tuple[Any, int]] = set()
    while nodes and len(seen) < _NODES:
        node, number = each = nodes.pop()
        if node is None or each in seen:
            continue
        seen.add(each)
        if any(owner is engine for owner in _owners(node, number)):
            found.append(each)
        else:
            nodes += node.next_functions
    return found


def _warn_of_factor(steps: int) -> None:
    from dsfix.log import warn_repeatedly

    warn_repeatedly(
        "factor",
        f"dict_output_double_scaling: the script multiplies the loss by {steps}, the number of accumulation steps. The "
        "patch takes this as compensation for the double division, and keeps that. If the factor has another purpose, "
        "compute the loss from the logits, or return only the loss from the model",
    )


def _alike(engine: Any, steps: int, loss: Any) -> bool:
    """Whether all that the loss comes from, as far as the engines' outputs, is divided by the same number."""
    own: set[int] | None = None
    nodes = [(loss.grad_fn, loss.output_nr)]
    seen: set[tuple[Any, int]] = set()
    while nodes:
        node, number = each = nodes.pop()
        if node is None or each in seen:
            continue
        if len(seen) == _NODES:
            _warn_of_length()
            return False
        seen.add(each)
        owners = _owners(node, number)
        if any(owner.gradient_accumulation_steps() != steps for owner in owners):
            return False
        if owners:
            continue
        if node.next_functions:
            if hasattr(node, "run_function"):  # a reentrant checkpoint: whose parameters it uses is not in the graph
                return False
            nodes += node.next_functions
        elif hasattr(node, "variable"):
            own = {id(parameter) for parameter in engine.module.parameters()} if own is None else own
            if id(node.variable) not in own:
                return False
    return True


def _warn_of_length() -> None:
    from dsfix.log import warn_repeatedly

    warn_repeatedly(
        __name__,
        f"dict_output_double_scaling: the loss has more than {_NODES} operations outside the model, too many to "
        "determine whether all of it comes from the engine's outputs. A part that does not, such as a penalty on "
        "parameters, is not divided by the accumulation steps; divide it in the script",
    )


@contextmanager
def of_loss(backward: AbstractContextManager[Any], engine: Any, divided: bool) -> Iterator[None]:
    """`backward`, around a backward pass of `engine`; divided: whether its loss is divided."""
    before = _dividers()
    # autograd passes this on to its threads, and to the backward passes called within one
    _stash((*before, (id(engine), engine.gradient_accumulation_steps())) if divided else before)
    try:
        with backward:
            yield
    finally:
        _stash(before)


def _stash(dividers: tuple[tuple[int, int], ...]) -> None:
    """Let `_dividers` return these in this thread, and in the backward passes that it begins."""
    import torch

    kept = _kept.setdefault(dividers, (dividers,))
    _increment()(kept)  # torch through 2.10 gives up a reference that it has not taken; with later ones the count grows
    torch._C._stash_obj_in_tls(__name__, kept)


@functools.cache
def _increment() -> Callable[[object], None]:
    """Counts one more reference to an object."""
    import ctypes

    counted = ctypes.PyDLL(None).Py_IncRef  # not that of ctypes.pythonapi, whose argument types others may set
    counted.argtypes, counted.restype = [ctypes.py_object], None
    return counted


def _dividers() -> tuple[tuple[int, int], ...]:
    """The engines that have divided the loss of this backward pass, or of an enclosing one, and by what."""
    import torch

    return torch._C._get_obj_in_tls(__name__)[0] if torch._C._is_key_in_tls(__name__) else ()


def inside(engine: Any) -> bool:
    """Whether this is inside a backward pass whose loss the engine has divided."""
    return any(number == id(engine) for number, _ in _dividers())


def divided_already(engine: Any) -> bool:
    """Whether the gradient of an output of the engine comes from a loss that was divided by the same number."""
    steps = engine.gradient_accumulation_steps()
    return any(number == id(engine) or by == steps for number, by in _dividers())


PATCH = Patch(
    title="engine.backward() + gradient accumulation, output with loss and logits: gradients are divided twice",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3,<0.19.6", "torch": ">=2.1.0.dev0"},  # 2.0 has no Node._sequence_nr
    changes=(
        Edit(
            f"{_ENGINE}.backward",
            after="gas_scaled_loss = loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss",
            code=f"from {__name__} import divides_loss, inside, of_loss\n"
            "divided = divides_loss(self, loss, scale_wrt_gas)\n"
            # else a hook has called this, with a loss multiplied by a gradient that is already divided
            "if divided and not inside(self):\n    loss = gas_scaled_loss",
        ),
        Edit(
            f"{_ENGINE}.backward",
            replace=_CONTEXT,
            code=f"of_loss({_CONTEXT}, self, divided)",
        ),
        Edit(
            _HOOK,
            before="return grad / self.gradient_accumulation_steps()",
            code="if divided_already(self):\n    return grad\n"
            f"if torch.is_grad_enabled():\n    self.{_DIFFERENTIATED} = True",
            uses=(divided_already,),
        ),
        Edit(
            "deepspeed.runtime.utils:OutputBackwardHookManager._traverse_and_register_hooks",
            before="hook_handle = outputs.register_hook(self._make_backward_hook(outputs))",
            code="returned(self, outputs)",
            uses=(returned,),
        ),
    ),
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
    from ._outputs import accumulate

    return accumulate(lab, lambda engine, loss: engine.backward(loss))
