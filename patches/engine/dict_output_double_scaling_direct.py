"""loss.backward() with gradient accumulation, the model returns loss and logits: gradients are divided twice.

Why: since 0.18.3 a hook on each tensor that the model returns divides its gradient by the gradient accumulation steps
    (GAS). Where the loss is returned along with what it was computed from, as in {"loss": …, "logits": …}, the gradient
    passes two hooks. For `engine.backward(loss)` this ended in 0.19.6, see dict_output_double_scaling; for
    `loss.backward()` and `engine.scale(loss).backward()` it did not. Nothing fails.
How: in a backward pass by `torch.autograd.backward`, the graph is followed to the first tensors that the model has
    returned together: these divide. A tensor that gets its whole gradient from them, or passes all of it on to others
    of them, no longer divides; a tensor returned twice divides once. Where a gradient also goes on to other tensors,
    beyond 1000 nodes, and in `torch.autograd.grad`, everything is divided as before.
Changes: with GAS > 1, such an output and no `engine.backward`, gradients become GAS times larger, with the same effects
    on clipping, SGD's steps and checkpoints as in dict_output_double_scaling.
Workaround: The loss is computed from the logits, or is all that the model returns: these stay right. A script that
    multiplies the loss by the GAS has to stop doing so.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MANAGER = "deepspeed.runtime.utils:OutputBackwardHookManager._make_backward_hook"
_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_MARK = "dsfix_outputs"  # in a node's metadata: which of its outputs have been returned, and with which others
_BY_HOOKS = "_dsfix_divided_by_hooks"  # of an engine: dict_output_double_scaling leaves `engine.backward` to the hooks
_NODES = 1000


class Pass:
    """One call of torch.autograd.backward; it is freed with that function's frame, whatever ends it."""

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self.roots = roots
        self.thread = threading.get_ident()
        self.task: int | None = None  # autograd's number of this pass, when the first output has its gradient
        self.first: dict[object, set[object] | None] = {}


_passes: list[weakref.ref[Pass]] = []


def started(roots: tuple[Any, ...]) -> Pass:
    """Note what a backward pass begins with, for as long as the caller keeps the result."""
    import torch

    if torch._C._current_graph_task_id() != -1:
        _running()  # the enclosing pass learns its number before this one begins
    current = Pass(roots)
    if torch._C._current_graph_task_id() == -1:  # earlier ones of this thread are over, and kept by an exception
        for each in list(_passes):
            earlier = each()
            if earlier is not None and earlier.thread == current.thread:
                earlier.task = -2  # no pass has this number
    # not popped from the end: other threads' passes end in any order
    _passes.append(weakref.ref(current, _passes.remove))
    return current


def dividing_once(manager: Any, tensor: Any, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`hook`, which divides the gradient of a returned tensor, except where all of that has been divided already."""
    together = manager.__dict__.setdefault("_dsfix_together", object())
    marks = tensor.grad_fn.metadata.setdefault(_MARK, {})
    twice = (together, tensor.output_nr) in marks
    output = marks.setdefault((together, tensor.output_nr), object())

    def once(grad: Any) -> Any:
        engine = getattr(manager.preprocess_per_tensor_fn, "__self__", None)
        known = getattr(engine, "__dict__", {})  # a hook of the script's own may belong to nothing
        by_hooks = not getattr(engine, "_running_engine_backward", True) or known.get(_BY_HOOKS, False)
        if by_hooks and (twice or _divided(together, output)):
            if not manager.preprocess_done:
                hook(grad)  # the engine's backward pass begins
            if _divides(engine):
                took_effect(__name__, "gradients were divided by the accumulation steps once instead of twice")
            return grad
        return hook(grad)

    return once


def _divides(engine: Any) -> bool:
    """Whether the engine's hook divides: there is something to divide by, and the last `backward` asked for it."""
    steps = getattr(engine, "gradient_accumulation_steps", None)
    return callable(steps) and steps() > 1 and getattr(engine, "_scale_wrt_gas", True)


def _running() -> Pass | None:
    """The pass that calls this; None if it may be one of several, as with threads."""
    import torch

    task = torch._C._current_graph_task_id()
    alive = [current for current in (each() for each in list(_passes)) if current is not None]
    unknown = [current for current in alive if current.task is None]
    for current in alive:
        if current.task == task:
            return current
    if len(unknown) != 1:
        return None
    unknown[0].task = task
    return unknown[0]


def _divided(together: object, output: object) -> bool:
    """Whether the output's gradient comes from other outputs alone, as far as is known."""
    current = _running()
    if current is None:
        return False
    if together not in current.first:
        current.first[together] = _first(current.roots, together)
    first = current.first[together]
    return first is not None and output not in first


def _first(roots: tuple[Any, ...], together: object) -> set[object] | None:
    """The outputs that divide: those reached from the roots without passing another one, except where all of one's
    gradient goes on to others of them. None if the way is long.
    """
    import torch

    # a tensor may have an attribute `node` of the script's own
    first, _ = _reached(
        [(root.grad_fn if isinstance(root, torch.Tensor) else root.node, root.output_nr) for root in roots], together
    )
    if first is None or len(first) < 2:
        return set(first) if first else None
    divide = set(first)
    for output, (node, _) in first.items():
        behind, unseen = _reached(list(node.next_functions), together, whole=False)
        if behind and not unseen and not _of_python(node) and behind.keys() <= first.keys():
            divide.remove(output)
    return divide


def _reached(
    nodes: list[tuple[Any, int]], together: object, whole: bool = True
) -> tuple[dict[object, tuple[Any, int]] | None, bool]:
    """The outputs that are reached from the nodes without passing another one, and whether the gradient may go on to
    something else, which ends it unless `whole`. None if the way is long.
    """
    seen: set[tuple[Any, int]] = set()
    found: dict[object, tuple[Any, int]] = {}
    else_too = False
    while nodes:
        node, number = nodes.pop()
        if node is None or (node, number) in seen:
            continue
        if len(seen) == _NODES:
            return None, True
        seen.add((node, number))
        output = node.metadata.get(_MARK, {}).get((together, number))
        if output is not None:
            found[output] = node, number
            continue
        if not node.next_functions or _of_python(node):
            else_too = True
            if not whole:
                break
        nodes += node.next_functions
    return found, else_too


def _of_python(node: Any) -> bool:
    """Whether it may use what is not in the graph: a checkpoint calls modules."""
    import torch

    return isinstance(node, torch.autograd.function.BackwardCFunction)


PATCH = Patch(
    title="loss.backward() + gradient accumulation, output with loss and logits: gradients are divided twice",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.3", "torch": ">=2.1.0.dev0"},  # with 2.0 the import fails (Python 3.11)
    changes=(
        Edit(
            "torch.autograd:backward",
            before="grad_tensors_ = _tensor_or_tensors_to_tuple(grad_tensors, len(tensors))",
            code="backward_pass = started(tensors)",
            uses=(started,),
        ),
        Edit(
            _MANAGER,
            before="return backward_hook",
            code="backward_hook = dividing_once(self, tensor, backward_hook)",
            uses=(dividing_once,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8245": "related: direct backward passes unchanged (0.19.6)",
    },
    present=(Source(f"{_ENGINE}._backward_prologue_per_tensor", "return grad / self.gradient_accumulation_steps()"),),
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from ._outputs import accumulate

    def backward(engine: Any, loss: Any) -> None:
        if not hasattr(engine, "_backward_prologue_per_tensor"):
            raise CannotTell(f"deepspeed {lab.deepspeed.__version__} supports only engine.backward()")
        loss.backward()

    return accumulate(lab, backward)
