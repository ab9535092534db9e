"""ZeRO-1 and ZeRO-2 with optimizer offload: only the last backward pass before a step counts.

Why: a backward pass at the accumulation boundary (with `gradient_accumulation_steps` 1: every pass) copies its gradient
    to the CPU for `step`. The next pass before the same step, whether of a second forward or of a second loss of the
    same one, overwrites it: the step consists of the last pass only. Since 0.19.0 that pass also adds what is kept of
    earlier steps, the last pass of each of them; nothing clears it (zero12_offload_left_out_gradients fixes that part).
    Nothing fails. Without offload see zero12_several_backwards_drop.
How: a pass at the boundary adds what an earlier pass of the same step has copied, unless the optimizer's or the
    engine's `zero_grad` was called between them. Off unless named: a script that discards a batch by
    `module.zero_grad()` or `.grad = None` trains as in PyTorch because of the bug, and cannot be told from one that
    adds its passes up.
Changes: a step includes the passes that were lost, and no stale gradients. What `module.zero_grad()` is meant to
    discard now counts: call `engine.zero_grad()`. In a checkpoint written without the patch Adam's moments adapt within
    some 1 / (1 - beta2) steps. ZenFlow, and fp32 accumulation for a 16-bit model in 0.19.8, are not covered.
Workaround: Scripts add the losses up, and call `backward` once. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def add_copied(optimizer: Any, param: Any) -> None:
    """Add what an earlier pass has copied to this pass's gradient; this pass will copy the sum."""
    if getattr(optimizer, "zenflow", False):
        return
    from deepspeed.accelerator import get_accelerator

    stream, param_id = get_accelerator().current_stream(), optimizer.get_param_id(param)
    streams = optimizer.__dict__.setdefault("_dsfix_copied", {})  # the stream of each copy
    if param_id in streams:
        took_effect(__name__, "all backward passes of the step were added; the last one alone would have been used")
        group, source_offset, dest_offset, numel = optimizer.grad_position[param_id]
        earlier = optimizer.single_partition_of_fp32_groups[group].grad.view(-1).narrow(0, dest_offset, numel)
        gradient = optimizer.get_param_gradient_attribute(param).view(-1).narrow(0, source_offset, numel)
        if streams[param_id] != stream:
            stream.wait_stream(streams[param_id])
        if not optimizer.cpu_offload_pin_memory and stream is not None:
            stream.synchronize()  # memory that is not pinned is read immediately
        # copied and converted on the stream: the host would read before the earlier copy is done
        gradient.add_(earlier.to(gradient.device, non_blocking=True))
    streams[param_id] = stream


PATCH = Patch(
    title="ZeRO-1/2 + optimizer offload: only the last backward pass before a step counts",
    severity=Severity.WRONG_RESULT,
    default=False,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.async_accumulate_grad_in_cpu_via_gpu",
            before="param_id = self.get_param_id(param)",
            code="if self.get_param_id(param) in self.__dict__.get('_dsfix_copied', ()):\n    return",
        ),
        Edit(
            f"{_OPTIMIZER}.copy_grads_in_partition",
            before="self.set_norm_for_param_grad_in_gpu(param)",
            code="add_copied(self, param)",
            uses=(add_copied,),
        ),
        Edit(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            after="self._release_ipg_buffers()",
            # through 0.18.4 a zero_grad of its own follows, which discards nothing
            code="self._dsfix_zeroes_copied = not hasattr(self, '_clear_param_grad_only')",
        ),
        Edit(
            f"{_OPTIMIZER}.zero_grad",
            before="for group in self.bit16_groups:\n    ...",
            code="if not self.__dict__.pop('_dsfix_zeroes_copied', False):\n    self._dsfix_copied = {}",
        ),
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine.zero_grad",
            before="for param_name, param in self.module.named_parameters():\n    ...",
            code="if hasattr(self.optimizer, 'reset_cpu_buffers'):\n    self.optimizer._dsfix_copied = {}",
        ),
        Edit(
            f"{_OPTIMIZER}.reset_cpu_buffers",
            after="self.norm_for_param_grads = {}",
            code="self._dsfix_copied = {}",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7981": "related: stale gradients since 0.19.0",
    },
    present=(
        Source(
            f"{_OPTIMIZER}.async_inplace_copy_grad_to_fp32_buffer_from_gpu",
            "dest_tensor.copy_(src_tensor, non_blocking=True)",
        ),
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    steps = [[lab.models.regression_batch(rank=0, step=2 * step + i) for i in range(2)] for step in range(_STEPS)]
    model = lab.models.MLP()
    expected = lab.reference.train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE * 2)  # the sum, not the mean
    last = [step[-1:] for step in steps]
    model = lab.models.MLP()
    last_only = lab.reference.train(model, last, model.loss, "SGD", lr=_LEARNING_RATE)
    model = lab.models.MLP()  # with a momentum of 1 a step consists of all gradients so far
    and_old = lab.reference.train(model, last, model.loss, "SGD", lr=_LEARNING_RATE, momentum=1.0)

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step in steps:
        for inputs, targets in step:
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()

    return lab.reference.compare(
        lab.parameters(engine),
        expected.parameters,
        {
            "those of each step's last pass alone": last_only.parameters,
            "those of the last passes of each step and all before": and_old.parameters,
        },
        after=f"after {_STEPS} steps of 2 backward passes",
    )
