"""ZeRO-3: a leaf module none of whose inputs needs a gradient fails in the backward pass.

Why: the gradients of a leaf module (`set_z3_leaf_modules`, `stage3_module_granularity_threshold`, which may take the
    whole model) are reduced in a full backward hook. torch calls it before the module's backward pass if no positional
    input needs a gradient: a vision tower, embeddings, the model itself, a module called with keywords. The parameters
    are not gathered then, and empty gradients replace theirs: "The size of tensor a (0) must match", or "output with
    shape [1] doesn't match the broadcast shape". If they happen to be gathered, zeros are reduced. Through 0.17.6 such
    modules are rejected.
How: in this case the hook runs once the last parameter of the module that takes part has its gradient.
Workaround: Scripts let an input need a gradient (`enable_input_require_grads`). You can keep it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Callable

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_HOOKS = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.create_reduce_and_remove_grad_hooks"


def after_gradients(reduce: Callable[..., None], parameters: list[Any]) -> Callable[..., None]:
    """The full backward hook `reduce` of a leaf module, which runs when these, its parameters, have their gradients."""
    import torch

    waiting: dict[int, Any] = {}  # the hook of each that lacks its gradient
    task = -1  # the backward pass

    def hook(module: Any, grad_input: Any, grad_output: Any) -> None:
        nonlocal task
        if any(each is not None for each in grad_input):
            return reduce(module, grad_input, grad_output)
        current = torch._C._current_graph_task_id()
        if waiting and task == current:  # the module was called more than once
            return None
        for handle in waiting.values():  # of a backward pass that has failed
            handle.remove()
        waiting.clear()
        task = current

        def arrived(parameter: Any) -> None:
            waiting.pop(id(parameter)).remove()
            if not waiting:
                reduce(module, grad_input, grad_output)

        for parameter in parameters:
            if takes_part(parameter):
                waiting[id(parameter)] = parameter.register_post_accumulate_grad_hook(arrived)
        if not waiting:
            return reduce(module, grad_input, grad_output)
        took_effect(__name__, "gradients of a leaf module were waited for (unpatched: RuntimeError)")
        return None

    return hook


def takes_part(parameter: Any) -> bool:
    """Whether the backward pass that runs gives it a gradient."""
    import torch

    if not parameter.requires_grad:
        return False
    with torch.enable_grad():  # off in a backward pass
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
    return bool(torch._C._will_engine_execute_node(node))


PATCH = Patch(
    title="ZeRO-3, leaf module whose input needs no gradient: The size of tensor a (0) must match",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.18.0"},
    changes=(
        Edit(
            _HOOKS,
            replace="self._leaf_module_hooks.append("
            "leaf_module.register_full_backward_hook(make_hook(leaf_parameters)))",
            code="""
self._leaf_module_hooks.append(
    leaf_module.register_full_backward_hook(after_gradients(make_hook(leaf_parameters), leaf_parameters))
)
""",
            uses=(after_gradients,),
        ),
    ),
    symptom=(
        r"The size of tensor a \(0\) must match the size of tensor b"
        r"|_engine_run_backward[\s\S]*output with shape \[1\] doesn't match the broadcast shape"
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7592": "introduced in 0.18.0"},
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    threshold = {"stage3_module_granularity_threshold": 1_000_000}  # takes the whole model
    return "; ".join([_train(lab, "a leaf module", {}), _train(lab, "the model as a leaf module", threshold)])


def _train(lab: Lab, what: str, zero: dict[str, int]) -> str:
    torch = lab.torch

    class Tower(torch.nn.Module):  # type: ignore[misc,name-defined]
        """Each batch is for one of two experts."""

        def __init__(self) -> None:
            super().__init__()
            self.experts = torch.nn.ModuleList(lab.models.MLP(seed=seed) for seed in (0, 1))
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any, expert: int) -> Any:
            return x[:, :1] + self.scale * self.experts[expert](x)

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tower = Tower()
            self.head = torch.nn.Linear(1, 1)
            with torch.no_grad():
                self.head.weight.fill_(0.5)
                self.head.bias.zero_()

        def forward(self, x: Any, expert: int) -> Any:
            # called twice, with keywords the second time
            return self.head(self.tower(x, 1) + self.tower(x=x / 2, expert=expert))

    def loss(model: Any, inputs: Any, targets: Any, expert: int) -> Any:
        return torch.nn.functional.mse_loss(model(inputs, expert), targets)

    batches = [(*lab.models.regression_batch(rank=0, step=step), step % 2) for step in range(_STEPS)]
    model = Model()
    steps = [[batch] for batch in batches]
    right = lab.reference.train(model, steps, lambda *batch: loss(model, *batch), "SGD", lr=_LEARNING_RATE).parameters

    model = Model()
    if not zero:
        lab.deepspeed.utils.set_z3_leaf_modules(model, [Tower])
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, **zero},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets, expert in batches:
        try:
            engine.backward(loss(engine, inputs.to(lab.device), targets.to(lab.device), expert))
        except RuntimeError as error:
            if "cannot be set as a leaf module" in str(error):
                raise CannotTell(f"deepspeed {lab.deepspeed.__version__} refuses such a leaf module") from error
            if re.search(r"The size of tensor a \(0\)|output with shape \[1\]", str(error)):
                raise BugPresent(f"{what}: {str(error).splitlines()[0]}") from error
            raise
        engine.step()
    return lab.reference.compare(lab.parameters(engine), right, after=f"{what}, after {_STEPS} steps:")
