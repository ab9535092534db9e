"""ZeRO-3 overwrites every module's attribute `id`: a model that uses its own gives wrong results.

Why: DeepSpeed numbers the modules of the model, and keeps the number as `module.id`. A module with its own `id`, such
    as the index of its layer, its device or its expert, reads the number instead. Nothing fails.
How: the number is kept as `module.ds_id`, as in 0.16.4 and later. The numbers are the same, and a module has an
    attribute `id` only if the model gave it one. Modules without `ds_id`, numbered by another package's hooks (ONNX
    Runtime's for ZeRO-3), are still identified by `id`.
Changes: jobs whose modules use an attribute `id`. A checkpoint written without the patch is of a model that was trained
    with DeepSpeed's numbers; resumed, the model computes with its own.
Workaround: Scripts give the attribute another name. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OFFLOAD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload"
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"


def _renamed(function: str, module: str, count: int) -> Edit:
    # ONNX Runtime's hooks for ZeRO-3 take the place of DeepSpeed's and write `id` themselves
    number = f"({module}.ds_id if hasattr({module}, 'ds_id') else {module}.id)"
    return Edit(function, replace=f"{module}.id", code=number, count=count)


PATCH = Patch(
    title="ZeRO-3 overwrites every module's attribute id: a model that uses its own gives wrong results",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.16.4"},
    changes=(
        Edit(
            f"{_OFFLOAD}._register_hooks_recursively",
            replace="module.id = my_count",
            code="module.ds_id = my_count",
            effect=RAN,  # the model may not use its own
            when="'id' in vars(module) or hasattr(type(module), 'id')",
        ),
        _renamed(f"{_OFFLOAD}.post_sub_module_forward_function", "sub_module", 2),
        _renamed(f"{_OFFLOAD}.post_sub_module_backward_function", "sub_module", 2),
        _renamed(f"{_COORDINATOR}.trace_prologue", "sub_module", 2),
        _renamed(f"{_COORDINATOR}.trace_prologue", "self.__submodule_order[self.__step_id]", 1),
        _renamed(f"{_COORDINATOR}.record_module", "sub_module", 1),
        _renamed(f"{_COORDINATOR}.record_parameters", "sub_module", 1),
        _renamed(f"{_COORDINATOR}.reset_step", "m", 2),
        _renamed(f"{_COORDINATOR}.fetch_sub_module", "current_submodule", 4),
        _renamed(f"{_COORDINATOR}.release_sub_module", "submodule", 1),
        _renamed("deepspeed.utils.debug:debug_module2name_id", "module", 1),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/6772": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/6847": "fixed in 0.16.4",
    },
    fixed_in="0.16.4",
    fixed=(Source(f"{_COORDINATOR}.record_module", "sub_module.ds_id"),),
)

_LEARNING_RATE, _STEPS = 0.1, 3


def reproduce(lab: Lab) -> str:
    torch, models, reference = lab.torch, lab.models, lab.reference

    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        """A Linear whose outputs are divided by its own id."""

        def __init__(self, id: int) -> None:
            super().__init__()
            self.linear, self.id = torch.nn.Linear(16, 16), id

        def forward(self, x: Any) -> Any:
            return self.linear(x) / self.id

    def model_with(first: int, second: int) -> Any:
        model = models.MLP()
        torch.manual_seed(0)
        model.blocks[0], model.blocks[1] = Scaled(first), Scaled(second)
        return model

    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = model_with(7, 7)
    right = reference.train(model, [[batch] for batch in batches], model.loss, "SGD", lr=_LEARNING_RATE)

    model = model_with(7, 7)
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    numbers = [int(block.id) for block in model.blocks]
    for inputs, targets in batches:
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    other = model_with(*numbers)
    wrong = reference.train(other, [[batch] for batch in batches], other.loss, "SGD", lr=_LEARNING_RATE)
    return reference.compare(
        lab.parameters(engine),
        right.parameters,
        {f"those of the ids {numbers} instead of 7": wrong.parameters},
        after=f"after {_STEPS} steps",
    )
