"""ZeRO-3: a second backward pass through the same graph fails, "The size of tensor a (0) must match".

Why: two losses of one forward pass, each with its own `engine.backward`, the first with `retain_graph=True`. The first
    backward pass releases each module's parameters as it proceeds, and the second does not fetch them: a module is
    fetched for as many backward passes as it had forward passes. It fails in the last module whose parameters are not
    persistent (`stage3_param_persistence_threshold`); with reentrant checkpointing by "Expected weight to be of same
    shape as normalized_shape, but got weight of shape [0]".
How: a module with parameters that are not gathered is fetched in each backward pass; such a fetch prefetches nothing
    and stays out of the recorded order of modules. A pass through gathered parameters makes no collective, as before.
    What the second pass fetches stays until its end since 0.19.3, before until the step or the next forward pass: it
    needs memory for all parameters.
Workaround: Scripts add up the losses and call `backward` once. You can keep it; it needs less memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab


class Expected(int):
    """Backward passes that a module is still fetched for, by its forward passes; one more is always possible."""

    def __gt__(self, other: int) -> bool:
        return True  # the caller checks for > 0, in a function whose name differs between releases

    def __sub__(self, other: int) -> Expected:
        return Expected(max(0, int(self) - other))

    def __reduce__(self) -> Any:  # a copy of the module, and a file with it, has a number
        return int, (int(self),)


class Untraced:
    """A module's coordinator that fetches parameters without recording or following the order of modules.

    The order belongs to all ranks: one that leaves it makes collectives at its next forward pass.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def trace_prologue(self, module: Any) -> None:
        pass

    def is_record_trace(self) -> bool:
        return False

    def fetch_sub_module(self, module: Any, forward: bool) -> None:
        state = vars(self._coordinator)
        mode, step = state[_MODE], state[_STEP]
        state[_MODE] = type(mode).INVALID
        try:
            self._coordinator.fetch_sub_module(module, forward=forward)
        finally:
            state[_MODE], state[_STEP] = mode, step


def coordinator_for(module: Any, coordinator: Any) -> Any:
    """What fetches the module in this backward pass; None if its forward passes are used up and it lacks nothing."""
    if not hasattr(module, "applied_pre_backward_ref_cnt"):
        return coordinator
    left = module.applied_pre_backward_ref_cnt = Expected(module.applied_pre_backward_ref_cnt)
    if left != 0:
        return coordinator
    own = module.parameters(recurse=getattr(module, "_z3_leaf", False))
    external = (parameter for _, parameter in module.ds_external_parameters())
    lacks = any(each.ds_status.name != "AVAILABLE" for each in (*own, *external))
    if lacks:
        ran(__name__)  # not each backward pass needs the parameters
        return Untraced(coordinator)
    if _ACTIVE in vars(coordinator):  # since 0.19.3, which asserts that a module whose pass ends is among them
        vars(coordinator)[_ACTIVE][module.ds_id] = module
    return None


_COORDINATOR = "_PartitionedParameterCoordinator__"
_MODE, _STEP, _ACTIVE = (f"{_COORDINATOR}{name}" for name in ("trace_mode", "step_id", "active_backward_submodules"))
_PRE_BACKWARD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload.pre_sub_module_backward_function"

PATCH = Patch(
    title="ZeRO-3: a second backward pass through the same graph: The size of tensor a (0) must match",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _PRE_BACKWARD,
            before="param_coordinator.trace_prologue(sub_module)",
            # the function that counts has two names, so that no evidence can require it
            code="""
param_coordinator = coordinator_for(sub_module, param_coordinator)
if param_coordinator is None:
    return
""",
            uses=(coordinator_for,),
        ),
    ),
    symptom=r"The size of tensor a \(0\) must match the size of tensor b",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/3539": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8045": "related: proposed fix",
        "https://github.com/deepspeedai/DeepSpeed/pull/8135": "related: proposed fix",
    },
    present=(
        Source(
            _PRE_BACKWARD,
            """
param_coordinator.trace_prologue(sub_module)
if param_coordinator.is_record_trace():
    param_coordinator.record_module(sub_module)
param_coordinator.fetch_sub_module(sub_module, forward=False)
""",
        ),
        # released whether or not the graph is retained
        Source(
            "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator.release_sub_module",
            "if param.ds_id in params_to_release and not param.is_external_param:\n    ...",
        ),
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    losses = (torch.nn.functional.mse_loss, torch.nn.functional.l1_loss)
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(
        model,
        [[batch] for batch in batches],
        lambda inputs, targets: sum(loss(model(inputs), targets) for loss in losses),
        "SGD",
        lr=_LEARNING_RATE,
    ).parameters

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        outputs = engine(inputs.to(lab.device))
        engine.backward(losses[0](outputs, targets.to(lab.device)), retain_graph=True)
        try:
            engine.backward(losses[1](outputs, targets.to(lab.device)))
        except RuntimeError as error:
            if re.search(PATCH.symptom, str(error)):
                raise BugPresent(f"in the second backward pass: {str(error).splitlines()[0][:110]}") from error
            raise
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine), right, within=1e-5, after=f"after {_STEPS} steps of two losses"
    )
