"""ZeRO-2 with optimizer offload and `set_gradient_accumulation_boundary`: only the last backward pass is used.

Why: with `gradient_accumulation_steps` 1, nothing is kept of a backward pass that is not at the accumulation boundary,
    and `engine.set_gradient_accumulation_boundary(False)` makes such passes (open-instruct and others accumulate that
    way, with a varying number of passes per step). Nothing fails: a step uses only the last pass. ZeRO-1, and ZeRO-2
    without offload, add them up.
How: a pass that is not at the boundary is kept on the CPU, and the next ones of the step are added; `zero_grad` of the
    optimizer or the engine discards it. From 0.15.2 to 0.18.9 three or more passes also need
    zero2_offload_accumulation_drops. Off unless named: a script that discards a pass by `module.zero_grad()` or `.grad
    = None` trains as in PyTorch because of the bug, and cannot be told from one that adds its passes up.
Changes: a step is larger by the passes that were lost, and a copy of the partition's gradients is kept on the CPU. What
    `module.zero_grad()` is meant to discard now counts: call `engine.zero_grad()`. A checkpoint written without the
    patch is intact; Adam's moments catch up within about 1 / (1 - beta2) steps.
Workaround: Scripts add the losses up, and call `backward` once. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_COPY = f"{_OPTIMIZER}.copy_grads_in_partition"

PATCH = Patch(
    title="ZeRO-2 + optimizer offload + set_gradient_accumulation_boundary: only the last backward pass is used",
    severity=Severity.WRONG_RESULT,
    default=False,
    affects={"deepspeed": ">=0.12.0,<0.19.0"},
    changes=(
        Edit(
            _COPY,
            replace="self.gradient_accumulation_steps > 1",
            # ZenFlow has its own boundaries
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
            effect="all backward passes of the step were added; the last one alone would have been used",
            when="self.is_gradient_accumulation_boundary and self.gradient_accumulation_steps == 1"
            " and self.get_param_id(param) in self.__dict__.get('_dsfix_kept', ())",
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
            # through 0.18.4 it then calls zero_grad itself, which discards nothing
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
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7981": "fixed in 0.19.0",
    },
    fixed_in="0.19.0",
    fixed=(
        Source(_COPY, "self.micro_step_id > 0 or not self.is_gradient_accumulation_boundary"),
        Source(_COPY, "self.micro_step_id > 0 or not self.is_gradient_accumulation_boundary()"),  # since 0.19.5
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 2  # the second shows that nothing remains of the first


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    # two passes: with more, releases that drop those in the middle need another patch
    steps = [[lab.models.regression_batch(rank=0, step=2 * step + i) for i in range(2)] for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE * 2)  # the sum, not the mean
    model = lab.models.MLP()
    last_only = lab.reference.train(model, [step[-1:] for step in steps], model.loss, "SGD", lr=_LEARNING_RATE)

    model = lab.models.MLP()
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
    return lab.reference.compare(
        lab.parameters(engine),
        right.parameters,
        {"those of each step's last pass alone": last_only.parameters},
        after=f"after {_STEPS} steps of 2 backward passes",
    )
