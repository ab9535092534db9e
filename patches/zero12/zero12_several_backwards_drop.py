"""ZeRO-1 and ZeRO-2: only the last backward pass before a step is used.

Why: since 0.17.6, a backward pass at the accumulation boundary (with `gradient_accumulation_steps` 1: every pass) moves
    the gradient sum to `averaged_gradients`, for `step`, and clears the sum. The next backward pass before the same
    step, whether of a second forward pass or of a second loss of the same one, then fails (0.17.6 to 0.18.2: TypeError
    'NoneType' object is not iterable) or, since 0.18.3, silently replaces the previous gradients: the step uses the
    last pass alone. Through 0.17.5, and in PyTorch, the passes add up; in 0.19.8 they do for 16-bit models that
    accumulate gradients in float32.
How: keeps the sum until `step` has used it, so that the next pass is added to it; `zero_grad` of the optimizer or the
    engine still discards it. Optimizer offload and Muon are unchanged. Off unless named: a script that discards a batch
    by `module.zero_grad()` or `.grad = None` trains as in PyTorch because of the bug, and cannot be told from one that
    adds its passes up.
Changes: a step is larger by the passes that were lost. A pass that `module.zero_grad()` is meant to discard now counts:
    call `engine.zero_grad()`. A checkpoint written without the patch is intact, but was trained on the last pass of
    each step; Adam's moments catch up within about 1 / (1 - beta2) steps.
Workaround: Scripts add the losses up, and call `backward` once. That can stay.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_EPILOGUE = f"{_OPTIMIZER}.independent_gradient_partition_epilogue"
_MESSAGE = "'NoneType' object is not iterable"

PATCH = Patch(
    title="ZeRO-1 and ZeRO-2: only the last backward pass before a step is used",
    severity=Severity.WRONG_RESULT,
    default=False,
    affects={"deepspeed": ">=0.17.6"},
    changes=(
        Edit(
            _EPILOGUE,
            replace="self.all_grad_tensors[i] = None",
            # Muon has already changed these in place
            code="""
if any(getattr(p, "use_muon", False) for p in self.params_in_partition[i]):
    self.all_grad_tensors[i] = None
""",
        ),
        Edit(
            _EPILOGUE,
            before="self.reduce_ipg_grads()",
            # groups without a sum here have another layout (since 0.19.8) or have not reached the boundary
            code="""
if getattr(self, "_dsfix_zeroed", False):
    for i, total in self.all_grad_tensors.items():
        if total is not None and self.averaged_gradients.get(i) is not None:
            self.all_grad_tensors[i] = self.averaged_gradients[i] = None
""",
            effect="all backward passes of the step were added; the last one alone would have been used",
            when="self.all_grad_tensors.get(0) and self.averaged_gradients.get(0) is not None"
            " and not getattr(self, '_dsfix_zeroed', False)",
        ),
        Edit(
            _EPILOGUE,
            before='see_memory_usage("End ipg_epilogue")',
            # through 0.18.4 the epilogue itself calls zero_grad
            code="""
if self.cpu_offload is False and self.use_grad_accum_attribute:
    for group in self.bit16_groups:
        for p in group:
            p.grad_accum = None
self._dsfix_zeroed = False
""",
        ),
        Edit(
            f"{_OPTIMIZER}.zero_grad",
            before="for group in self.bit16_groups:\n    ...",
            code="self._dsfix_zeroed = True",
        ),
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine.zero_grad",
            before="for param_name, param in self.module.named_parameters():\n    ...",
            code='if hasattr(self.optimizer, "all_grad_tensors"):\n    self.optimizer._dsfix_zeroed = True',
        ),
    ),
    symptom=rf"independent_gradient_partition_epilogue[\s\S]*{_MESSAGE}",
    upstream={
        "https://github.com/allenai/open-instruct/pull/1498": "related: a workaround",
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "related: silent since this change (0.18.3)",
    },
    present=(
        Source(
            _EPILOGUE,
            """
self.averaged_gradients[i] = self.get_flat_partition(
    self.params_in_partition[i],
    self.first_offset[i],
    self.partition_size[i],
    dtype=self.gradient_accumulation_dtype,
    device=get_accelerator().current_device_name(),
    param_group_idx=i,
    return_tensor_list=True,
)
""",
        ),
    ),
)

_LEARNING_RATE = 0.1
_PASSES = 3
_STEPS = 2  # the second shows that nothing remains of the first


def reproduce(lab: Lab) -> str:
    batch = lab.models.regression_batch
    steps = [[batch(rank=0, step=step * _PASSES + i) for i in range(_PASSES)] for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE * _PASSES)  # the sum, not the mean
    model = lab.models.MLP()
    last_only = lab.reference.train(model, [step[-1:] for step in steps], model.loss, "SGD", lr=_LEARNING_RATE)

    for stage in (1, 2):
        for forwards in (_PASSES, 1):
            job = f"ZeRO-{stage}, {_STEPS} steps of {forwards} forward and {_PASSES} backward passes"
            try:
                parameters = _train(lab, steps, stage, forwards)
            except TypeError as error:
                passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
                if _MESSAGE in str(error) and "independent_gradient_partition_epilogue" in passed:
                    raise BugPresent(f"{job}: TypeError: {error}") from error
                raise
            lab.reference.compare(
                parameters,
                right.parameters,
                {"those of each step's last pass alone": last_only.parameters},
                after=f"{job}:",
            )
    return f"after {_STEPS} steps of {_PASSES} backward passes of ZeRO-1 and ZeRO-2 the parameters match plain PyTorch"


def _train(lab: Lab, steps: list[list[Any]], stage: int, forwards: int) -> dict[str, Any]:
    torch = lab.torch
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": stage},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for batches in steps:
        outputs: list[Any] = []
        if forwards == 1:
            outputs = engine(torch.cat([inputs for inputs, _ in batches]).to(lab.device)).chunk(len(batches))
        for i, (inputs, targets) in enumerate(batches):
            output = outputs[i] if outputs else engine(inputs.to(lab.device))
            loss = torch.nn.functional.mse_loss(output, targets.to(lab.device))
            engine.backward(loss, retain_graph=i + 1 < len(outputs))
        engine.step()
    return lab.parameters(engine)
