"""ZeRO-1 and ZeRO-2: of several backward passes before a step only the last counts.

Why: since 0.17.6 a backward pass at the accumulation boundary (with `gradient_accumulation_steps` 1: every pass) hands
    the sum of the gradients to `averaged_gradients`, for `step`, and forgets the sum. The next pass before the same
    step, be it of a second forward or of a second loss of the same one, then fails (0.17.6 to 0.18.2: TypeError
    'NoneType' object is not iterable) or, from 0.18.3 on, takes the place of what was there: nothing fails, a step is
    made of the last pass alone. Up to 0.17.5, and in PyTorch, the passes add up; in 0.19.8 they do where a model of 16
    bits accumulates gradients in float32.
How: the sum is kept until `step` has used it, so that the next pass is added to it. It shares the memory of what `step`
    gets. From 0.18.5 on `grad_accum` (gradients accumulated in another dtype than the model's) also outlives the pass
    and would be added twice: it is cleared with it, as before 0.18.5. `zero_grad`, the optimizer's or the engine's,
    goes on discarding what was meant for `step`. Optimizer offload goes another way, and Muon makes its update of the
    sum in place: both are left alone. Off unless asked for by name: a script that discards a batch by
    `module.zero_grad()`, or by setting each `.grad` to None, trains as in PyTorch because of the fault, and cannot be
    told from one that adds its passes up: DeepSpeed has set each `.grad` to None by then itself.
Changes: a step is longer by the passes that were lost. A pass after which neither `step` nor the optimizer's or the
    engine's `zero_grad` is called, a batch to be skipped or a warm-up say, now counts: call `engine.zero_grad()` where
    the script calls `module.zero_grad()`. In a checkpoint written without the patch all is intact, but trained on the
    last pass of each step; Adam's moments are those of its gradients and follow within some 1 / (1 - beta2) steps.
Upstream: not fixed in 0.19.8; https://github.com/allenai/open-instruct/pull/1498 goes round it. Brought by
    https://github.com/deepspeedai/DeepSpeed/pull/7509 (0.17.6), silent since
    https://github.com/deepspeedai/DeepSpeed/pull/7665 (0.18.3).
Retire: https://github.com/allenai/open-instruct/pull/1498 tells of it; no fix upstream yet.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_EPILOGUE = f"{_OPTIMIZER}.independent_gradient_partition_epilogue"
_MESSAGE = "'NoneType' object is not iterable"

PATCH = Patch(
    title="ZeRO-1 and ZeRO-2: of several backward passes before a step only the last counts",
    severity=Severity.WRONG_RESULT,
    default=False,
    affects={"deepspeed": ">=0.17.6"},
    changes=(
        Edit(
            _EPILOGUE,
            replace="self.all_grad_tensors[i] = None",
            # Muon has already worked on these in place
            code="""
if any(getattr(p, "use_muon", False) for p in self.params_in_partition[i]):
    self.all_grad_tensors[i] = None
""",
        ),
        Edit(
            _EPILOGUE,
            before="self.reduce_ipg_grads()",
            # groups that have no sum here are of another layout (from 0.19.8 on), or have not reached the boundary
            code="""
if getattr(self, "_dsfix_zeroed", False):
    for i, total in self.all_grad_tensors.items():
        if total is not None and self.averaged_gradients.get(i) is not None:
            self.all_grad_tensors[i] = self.averaged_gradients[i] = None
""",
        ),
        Edit(
            _EPILOGUE,
            before='see_memory_usage("End ipg_epilogue")',
            # up to 0.18.4 the epilogue itself calls zero_grad
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
    upstream=(
        "https://github.com/allenai/open-instruct/pull/1498",
        "https://github.com/deepspeedai/DeepSpeed/pull/7509",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665",
    ),
    fixed_in=None,
)

_LEARNING_RATE = 0.1
_PASSES = 3
_STEPS = 2  # the second shows that nothing is left over from the first


def reproduce(lab: Lab) -> str:
    assert lab.torch is not None  # with its device, before others import it
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    steps = [[regression_batch(rank=0, step=step * _PASSES + i) for i in range(_PASSES)] for step in range(_STEPS)]
    model = MLP()
    expected = train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE * _PASSES)  # the sum, not the mean
    model = MLP()
    last_only = train(model, [step[-1:] for step in steps], model.loss, "SGD", lr=_LEARNING_RATE)

    worst = 0.0
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
            difference = largest_difference(parameters, expected.parameters)
            if largest_difference(parameters, last_only.parameters).relative < 1e-4 < difference.relative:
                raise BugPresent(f"{job}: the parameters are those of each step's last pass alone: {difference}")
            assert difference.relative < 1e-4, f"{job}: {difference}"
            worst = max(worst, difference.relative)
    return f"after {_STEPS} steps of {_PASSES} backward passes the parameters are plain PyTorch's within {worst:.1e}"


def _train(lab: Lab, steps: list[list[Any]], stage: int, forwards: int) -> dict[str, Any]:
    torch = lab.torch
    from dsfix.lab.models import MLP

    model = MLP()
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
