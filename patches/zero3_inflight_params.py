"""ZeRO-3: RuntimeError "still have inflight params" where a forward pass takes another way than the one before.

Why: ZeRO-3 remembers the order of the modules and gathers parameters ahead of their use. Where a module is left out (a
    condition on the data, a mixture of experts, a generation between two steps), what was gathered for it is never
    waited for, and up to 0.15.2 the end of the step, of an evaluation or of a gathering of all parameters takes that
    for a fault and stops the job.
How: as in 0.15.3, parameters that are still on their way are waited for and released: at the end of a step, when the
    remembered order turns out to be wrong, and when all parameters are released.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/5828 and 5648, 3156, 3724, fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/6557 (0.15.3); the check came with
    https://github.com/deepspeedai/DeepSpeed/pull/1901 (0.6.2).
Retire: when DeepSpeed 0.15.2 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"
_MESSAGE = "still have inflight params"
_RELEASE = """
for inflight, handle in self.__inflight_param_registry.items():
    handle.wait()
    if not inflight.ds_active_sub_modules:
        inflight.partition()
        self.__n_available_params -= inflight.ds_numel
self.__inflight_param_registry.clear()
"""

PATCH = Patch(
    title='ZeRO-3: "still have inflight params" where a module is left out of a forward pass',
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.15.3"},
    changes=(
        Edit(f"{_COORDINATOR}.reset_step", replace="if self.__inflight_param_registry:\n    ...", code=_RELEASE),
        Edit(f"{_COORDINATOR}._invalidate_trace", after="self._clear_trace_structures()", code=_RELEASE),
        Edit(
            f"{_COORDINATOR}.release_and_reset_all",
            replace='raise RuntimeError(f"param {param.ds_summary()} still in flight")',
            code="self.__inflight_param_registry.pop(param).wait()",
        ),
    ),
    symptom=rf"{_MESSAGE}|param .* still in flight",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/5828",
        "https://github.com/deepspeedai/DeepSpeed/issues/5648",
        "https://github.com/deepspeedai/DeepSpeed/issues/3156",
        "https://github.com/deepspeedai/DeepSpeed/issues/3724",
        "https://github.com/deepspeedai/DeepSpeed/pull/1901",
        "https://github.com/deepspeedai/DeepSpeed/pull/6557",
    ),
    fixed_in="0.15.3",
    fixed=(Source(f"{_COORDINATOR}.reset_step", "self._clean_inflight_param_registry()"),),
)

_LEARNING_RATE = 0.1
_WAYS = (True, True, True, False, True, False)  # whether the second block takes part, step by step


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    class Model(MLP):
        def __init__(self) -> None:
            super().__init__(depth=3)
            self.blocks[1].requires_grad_(False)  # what is trained and left out is another matter

        def forward(self, x: Any, whole: bool = True) -> Any:
            for block in self.blocks if whole else self.blocks[::2]:
                x = block(x)
            return self.head(x)

    def loss_of(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(outputs, targets)

    steps = [(*regression_batch(rank=0, step=step), whole) for step, whole in enumerate(_WAYS)]
    model = Model()
    expected = train(
        model, [[step] for step in steps], lambda x, y, whole: loss_of(model(x, whole), y), "SGD", lr=_LEARNING_RATE
    )

    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for number, (inputs, targets, whole) in enumerate(steps):
        try:
            engine.backward(loss_of(engine(inputs.to(lab.device), whole), targets.to(lab.device)))
        except RuntimeError as error:
            if _MESSAGE in str(error):
                raise BugPresent(f"step {number}, the first without the second block: {_MESSAGE} …") from error
            raise
        engine.step()
    difference = largest_difference(lab.parameters(engine), expected.parameters)
    done = f"after {_WAYS.count(True)} steps with and {_WAYS.count(False)} without the second block"
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters are plain PyTorch's within {difference.relative:.1e}"
