"""ZeRO-2 with optimizer offload and `set_gradient_accumulation_boundary`: only the last backward pass counts.

Why: with `gradient_accumulation_steps` 1 nothing is kept of a backward pass that is not at the accumulation boundary,
    and `engine.set_gradient_accumulation_boundary(False)` makes such passes (open-instruct and others accumulate that
    way, a varying number of passes per step). Nothing fails: a step is made of the last pass alone. ZeRO-1, and ZeRO-2
    without offload, add them up.
How: a pass that is not at the boundary is kept on the CPU, and the next ones of the step are added, by the functions
    that do so with more `gradient_accumulation_steps`. Which parameters have something kept in this step is written
    down, so that a lone pass copies nothing and a parameter that is used in the last pass only gets nothing of the step
    before; the optimizer's and the engine's `zero_grad` strike it out. With more than one `gradient_accumulation_steps`
    nothing changes. Between 0.15.2 and 0.18.9 three passes and more need the patch zero2_offload_accumulation_drops as
    well. Off unless asked for by name: a script that discards each such pass, a warm-up say, by `module.zero_grad()` or
    by setting each `.grad` to None trains as in PyTorch because of the fault, and cannot be told from one that adds its
    passes up: DeepSpeed has set each `.grad` to None by then itself.
Changes: a step is longer by the passes that were lost, and takes a copy of the partition's gradients on the CPU.
    What `module.zero_grad()` is to discard now counts, as with ZeRO-2 in 0.19.0: call `engine.zero_grad()`. In a
    checkpoint written without the patch all is intact, but trained on the last pass of each step; Adam's moments are
    those of its gradients and follow within some 1 / (1 - beta2) steps.
Upstream: fixed by https://github.com/deepspeedai/DeepSpeed/pull/7981 (0.19.0).
Retire: when DeepSpeed 0.18.9 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_COPY = f"{_OPTIMIZER}.copy_grads_in_partition"

PATCH = Patch(
    title="ZeRO-2 + optimizer offload + set_gradient_accumulation_boundary: only the last backward pass counts",
    severity=Severity.WRONG_RESULT,
    default=False,
    affects={"deepspeed": ">=0.12.0,<0.19.0"},
    changes=(
        Edit(
            _COPY,
            replace="self.gradient_accumulation_steps > 1",
            # ZenFlow has boundaries of its own
            code="""(
    self.gradient_accumulation_steps > 1
    or not (self.is_gradient_accumulation_boundary or getattr(self, "zenflow", False))
    or self.get_param_id(param) in self.__dict__.get("_dsfix_kept", ())
)""",
        ),
        Edit(
            _COPY,
            before="if self.is_gradient_accumulation_boundary:\n    ...",
            code="""
if not (self.is_gradient_accumulation_boundary or getattr(self, "zenflow", False)):
    self.__dict__.setdefault("_dsfix_kept", set()).add(self.get_param_id(param))
""",
        ),
        Edit(
            f"{_OPTIMIZER}.async_accumulate_grad_in_cpu_via_gpu",
            replace="self.micro_step_id > 0",
            code="""(
    self.micro_step_id > 0
    and (self.gradient_accumulation_steps > 1 or param_id in self.__dict__.get("_dsfix_kept", ()))
)""",
        ),
        Edit(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            after="self._release_ipg_buffers()",
            # up to 0.18.4 it goes on with a zero_grad of its own, which discards nothing
            code="self._dsfix_zeroes_kept = not hasattr(self, '_clear_param_grad_only')",
        ),
        Edit(
            f"{_OPTIMIZER}.zero_grad",
            before="for group in self.bit16_groups:\n    ...",
            code="if not self.__dict__.pop('_dsfix_zeroes_kept', False):\n    self._dsfix_kept = set()",
        ),
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine.zero_grad",
            before="for param_name, param in self.module.named_parameters():\n    ...",
            code="if hasattr(self.optimizer, 'reset_cpu_buffers'):\n    self.optimizer._dsfix_kept = set()",
        ),
        Edit(
            f"{_OPTIMIZER}.reset_cpu_buffers",
            after="self.norm_for_param_grads = {}",
            code="self._dsfix_kept = set()",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/7981",),
    fixed_in="0.19.0",
    fixed=(
        Source(_COPY, "self.micro_step_id > 0 or not self.is_gradient_accumulation_boundary"),
        Source(_COPY, "self.micro_step_id > 0 or not self.is_gradient_accumulation_boundary()"),  # from 0.19.5 on
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 2  # the second shows that nothing is left over from the first


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    # two passes: with more, releases that drop those in the middle would need another patch
    steps = [[regression_batch(rank=0, step=2 * step + i) for i in range(2)] for step in range(_STEPS)]
    model = MLP()
    expected = train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE * 2)  # the sum, not the mean
    model = MLP()
    last_only = train(model, [step[-1:] for step in steps], model.loss, "SGD", lr=_LEARNING_RATE)

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step in steps:
        for last, (inputs, targets) in zip((False, True), step):
            engine.set_gradient_accumulation_boundary(last)
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()

    parameters = lab.parameters(engine)
    done = f"after {_STEPS} steps of 2 backward passes"
    difference = largest_difference(parameters, expected.parameters)
    if largest_difference(parameters, last_only.parameters).relative < 1e-4 < difference.relative:
        raise BugPresent(f"{done} the parameters are those of each step's last pass alone: {difference}")
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters are plain PyTorch's within {difference.relative:.1e}"
