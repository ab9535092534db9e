"""ZeRO-3: a module in evaluation mode fails in training, "backward pass is invalid for module in evaluation mode".

Why: ZeRO-3 asserts in each module's backward pass that it is in training mode. That stops jobs whose frozen parts are
    in `eval()` while gradients pass through them (a frozen backbone, LoRA, GRPO; Lightning since 2.2), jobs that train
    in `eval()`, and gradients of inputs in an evaluation. It hides a second failure: modules in training mode and in
    evaluation mode have separate coordinators, and neither can wait for what the other has prefetched: "AssertionError:
    {…, 'status': 'INFLIGHT', …}" in the forward pass.
How: when a job first runs into either, the training coordinator takes over all modules, as in 0.15.4, and records a new
    trace, once. Other jobs keep both. Through 0.15.2 alternating between training and evaluation needs
    zero3_inflight_params as well. All ranks must have the same modules in `eval()` and pass gradients through the same
    ones, or they wait for each other, as in 0.15.4.
Workaround: Scripts leave the module in training mode and set the probability of its dropout to 0. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OFFLOAD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload"
_FORWARD = f"{_OFFLOAD}.pre_sub_module_forward_function"
_BEFORE_BACKWARD = f"{_OFFLOAD}.pre_sub_module_backward_function"
_AFTER_BACKWARD = f"{_OFFLOAD}.post_sub_module_backward_function"
_MESSAGE = "backward pass is invalid for module in evaluation mode"
_ASSERTION = f'assert sub_module.training, "{_MESSAGE}"'


def use_one_coordinator(offload: Any) -> None:
    """Let the coordinator for training serve the modules in evaluation mode as well, from now on."""
    coordinator = offload.get_param_coordinator(training=True)
    if offload.param_coordinators.get(False) is coordinator:
        return
    took_effect(__name__, "modules in evaluation mode took part in training (unpatched: AssertionError)")
    offload.param_coordinators[False] = coordinator
    prefetched = offload._DeepSpeedZeRoOffload__inflight_param_registry[False]
    for parameter, handle in prefetched.items():
        handle.wait()
        if not parameter.ds_active_sub_modules:
            parameter.partition()
    prefetched.clear()
    if coordinator.is_record_trace():  # the modules in evaluation mode are missing
        coordinator._invalidate_trace()


def in_flight_elsewhere(offload: Any, module: Any) -> bool:
    """Whether the other coordinator has prefetched a parameter of the module that nobody has waited for."""
    prefetched = offload._DeepSpeedZeRoOffload__inflight_param_registry[not module.training]
    if not prefetched:
        return False
    parameters = [*module.parameters(recurse=getattr(module, "_z3_leaf", False))]
    parameters += [parameter for _, parameter in module.ds_external_parameters()]
    return any(each.ds_status.name == "INFLIGHT" and each in prefetched for each in parameters)


PATCH = Patch(
    title="ZeRO-3: AssertionError, backward pass is invalid for module in evaluation mode",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.15.4"},
    changes=(
        Edit(
            _FORWARD,
            before="param_coordinator = self.get_param_coordinator(training=sub_module.training)",
            code="if in_flight_elsewhere(self, sub_module):\n    use_one_coordinator(self)",
            uses=(in_flight_elsewhere, use_one_coordinator),
        ),
        Edit(
            _BEFORE_BACKWARD,
            replace=_ASSERTION,
            code="if not sub_module.training:\n    use_one_coordinator(self)",
            uses=(use_one_coordinator,),
        ),
        Edit(_AFTER_BACKWARD, replace=_ASSERTION, code="pass"),
    ),
    symptom=_MESSAGE,
    upstream={
        "https://github.com/Lightning-AI/pytorch-lightning/issues/19467": "reported",
        "https://github.com/modelscope/ms-swift/issues/3107": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/7354": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/3884": "related: two registries of parameters in flight",
        "https://github.com/deepspeedai/DeepSpeed/pull/6662": "fixed in 0.15.4",
    },
    fixed_in="0.15.4",
    fixed=(Source(f"{_OFFLOAD}.get_param_coordinator", "return self.param_coordinator"),),
    ranks=2,
)

_LEARNING_RATE = 0.1
_PARTLY, _TRAINING, _WHOLE = "the frozen block in evaluation mode", "training mode", "evaluation mode"
_STEPS = (_PARTLY, _PARTLY, _PARTLY, _TRAINING, _TRAINING, _TRAINING, _PARTLY, _WHOLE, _WHOLE, _WHOLE, _TRAINING)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    seen = [_train(lab, steps) for steps in (_STEPS, _STEPS[3:])]  # the second is in training mode at first
    return "; ".join(seen)


def _train(lab: Lab, steps: tuple[str, ...]) -> str:
    torch = lab.torch

    class Model(lab.models.MLP):  # type: ignore[misc,name-defined]
        """Computes something else in training mode than in evaluation mode, without random numbers."""

        def __init__(self) -> None:
            super().__init__(depth=3)
            self.blocks[1].requires_grad_(False)

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x) * (1.0 if block.training else 0.5)
            return self.head(x)

    def loss(model: Any, mode: str, inputs: Any, targets: Any) -> Any:
        model.train(mode != _WHOLE)
        getattr(model, "module", model).blocks[1].train(mode == _TRAINING)
        return torch.nn.functional.mse_loss(model(inputs), targets)

    batches = [[(mode, *lab.models.regression_batch(rank, step)) for rank in (0, 1)] for step, mode in enumerate(steps)]
    model = Model()
    right = lab.reference.train(model, batches, lambda *batch: loss(model, *batch), "SGD", lr=_LEARNING_RATE)

    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0][1]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])
    for step, batch in enumerate(batches):
        mode, inputs, targets = batch[lab.rank]
        value = loss(engine, mode, inputs.to(lab.device), targets.to(lab.device))
        try:
            engine.backward(value)
        except AssertionError as error:
            if _MESSAGE in str(error):
                raise BugPresent(f"step {step}, {mode}: AssertionError: {error}") from error
            raise
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine), right.parameters, after=f"after {len(steps)} steps that begin with {steps[0]}"
    )
