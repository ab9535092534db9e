"""bf16: a parameter that several checkpointed parts use: its gradients count more than once.

Why: from 0.16.5 to 0.17.0 BF16_Optimizer (bf16 without ZeRO, bf16 with ZeRO-1 and `data_types.grad_accum_dtype:
    "fp32"`, bf16 in a pipeline) adds `.grad` to the fp32 gradient as soon as autograd has added to it, and leaves it
    there. Reentrant checkpointing runs a backward pass of its own for each part: what two parts use, as a layer that is
    applied twice or tied embeddings, is added twice, and the first gradient is then counted twice. In other releases
    only `bf16.immediate_grad_update` does so. Nothing fails.
How: from the second time on, until `.grad` is cleared, only what autograd has just added counts; the node of the graph
    that adds to `.grad` knows it. `.grad` stays what it was, and what is added to once counts as before.
Changes: the gradients, their norm and the updates of such parameters. A checkpoint written without the patch can be
    resumed; its momentum comes from the wrong gradients.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"
_INIT, _HOOKS = f"{_OPTIMIZER}.__init__", f"{_OPTIMIZER}.create_grad_acc_hooks"
# attribute of the optimizer: the parameters whose `.grad` has counted since it was last cleared; True: just now
_COUNTED = "_dsfix_counted"


def count(optimizer: Any, parameter: Any, group: int, number: int, arguments: Any) -> None:
    """Count a gradient. arguments: what torch passes to the hook: of the node two, of the parameter one."""
    counted = optimizer.__dict__.setdefault(_COUNTED, {})
    if (group, number) not in counted:
        counted[group, number] = True
        optimizer.accumulate_hp_grads_and_remove_lp(parameter, group, number)
    elif len(arguments) == 2:
        _add(optimizer, group, number, arguments[1][0])


def watch(optimizer: Any, parameter: Any, group: int, number: int) -> None:
    """Count what comes after the first time if the optimizer hooks the parameter, as since 0.16.6."""
    import weakref

    hooks_parameter = hasattr(sys.modules[type(optimizer).__module__], "register_grad_hook")
    if not hooks_parameter or not hasattr(parameter, "register_post_accumulate_grad_hook"):
        return
    node, of = parameter.expand_as(parameter).grad_fn.next_functions[0][0], weakref.ref(optimizer)

    def hook(_: Any, added: Any) -> None:  # after that of the parameter
        optimizer = of()
        counted = {} if optimizer is None else optimizer.__dict__.get(_COUNTED, {})
        if counted.get((group, number)) is False:
            _add(optimizer, group, number, added[0])
        elif (group, number) in counted:
            counted[group, number] = False

    optimizer._grad_acc_hooks.append(node.register_hook(hook))
    optimizer.__dict__.setdefault("_dsfix_nodes", []).append(node)  # without a reference to it the hook is lost


def _add(optimizer: Any, group: int, number: int, gradient: Any) -> None:
    if gradient is not None:
        total = optimizer.fp32_groups_gradients[group][number]
        total.data.add_(gradient.detach().to(total.dtype).view(total.shape))


PATCH = Patch(
    title="bf16: gradients of a parameter that several checkpointed parts use count more than once",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.16.5,<0.17.1"},
    changes=(
        Edit(
            _HOOKS,
            before="def accumulate_hp_grads_and_remove_lp(*notneeded):\n    ...",
            code="watch(self, param, i, j)",
            uses=(watch,),
        ),
        Edit(
            _HOOKS,
            replace="self.accumulate_hp_grads_and_remove_lp(param, i, j)",
            code="count(self, param, i, j, notneeded)",
            uses=(count,),
        ),
        Edit(
            f"{_OPTIMIZER}.clear_lp_grads",
            before="zero_grads_list = []",
            code=f"self.__dict__.pop('{_COUNTED}', None)",
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6508": "related: `.grad` is not cleared",
        "https://github.com/deepspeedai/DeepSpeed/pull/7018": "introduced in 0.16.5, as a default",
        "https://github.com/deepspeedai/DeepSpeed/pull/6976": "fixed in 0.17.1: the default is off again",
    },
    fixed_in="0.17.1",
    present=(
        Source("deepspeed.runtime.constants", "BFLOAT16_IMMEDIATE_GRAD_UPDATE_DEFAULT = True"),
        Source(_INIT, "self.immediate_grad_update = immediate_grad_update"),
    ),
    fixed=(Source(_INIT, "self.immediate_grad_update = bfloat16_config.immediate_grad_update"),),
)


def reproduce(lab: Lab) -> str:
    _ = lab.torch
    from dsfix.lab.checkpointed_twice import step

    return step(lab)
