"""ZeRO-3: RuntimeError "still have inflight params" when a forward pass takes a different path than the previous one.

Why: ZeRO-3 records the order of the modules and prefetches parameters. Where a module is skipped (a condition on the
    data, a mixture of experts, a generation between two steps), the parameters fetched for it are never waited for, and
    through 0.15.2 the end of the step, of an evaluation or of a gathering of all parameters treats that as an error
    and stops the job.
How: as in 0.15.3, parameters still in flight are waited for and released: at the end of a step, when the recorded order
    turns out to be wrong, and when all parameters are released.
Workaround: Scripts run the module that they would skip and multiply its output by 0; others set
    `stage3_prefetch_bucket_size` to 0. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

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
_EFFECT = "parameters in flight were waited for (unpatched: RuntimeError)"

PATCH = Patch(
    title='ZeRO-3: "still have inflight params" when a forward pass skips a module',
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.15.3"},
    changes=(
        Edit(
            f"{_COORDINATOR}.reset_step",
            replace="if self.__inflight_param_registry:\n    ...",
            code=_RELEASE,
            effect=_EFFECT,
            when="self.__inflight_param_registry",
        ),
        Edit(
            f"{_COORDINATOR}._invalidate_trace",
            after="self._clear_trace_structures()",
            code=_RELEASE,
            effect=RAN,  # the forward pass may need them yet
            when="self.__inflight_param_registry",
        ),
        Edit(
            f"{_COORDINATOR}.release_and_reset_all",
            replace='raise RuntimeError(f"param {param.ds_summary()} still in flight")',
            code="self.__inflight_param_registry.pop(param).wait()",
            effect=_EFFECT,
        ),
    ),
    symptom=rf"{_MESSAGE}|param .* still in flight",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5828": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/5648": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/3156": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/3724": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/1901": "introduced in 0.6.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/6557": "fixed in 0.15.3",
    },
    fixed_in="0.15.3",
    fixed=(Source(f"{_COORDINATOR}.reset_step", "self._clean_inflight_param_registry()"),),
)

_LEARNING_RATE = 0.1
_PATHS = (True, True, True, False, True, False)  # whether each step uses the second block


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Model(lab.models.MLP):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(depth=3)
            self.blocks[1].requires_grad_(False)  # a trained block that is skipped is another matter

        def forward(self, x: Any, whole: bool = True) -> Any:
            for block in self.blocks if whole else self.blocks[::2]:
                x = block(x)
            return self.head(x)

    def loss_of(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(outputs, targets)

    steps = [(*lab.models.regression_batch(rank=0, step=step), whole) for step, whole in enumerate(_PATHS)]
    model = Model()
    right = lab.reference.train(
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
    return lab.reference.compare(
        lab.parameters(engine),
        right.parameters,
        after=f"after {_PATHS.count(True)} steps with and {_PATHS.count(False)} without the second block",
    )
