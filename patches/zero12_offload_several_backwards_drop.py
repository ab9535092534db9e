"""ZeRO-1 and ZeRO-2 with optimizer offload: of several backward passes before a step only the last counts.

Why: a backward pass at the accumulation boundary (with `gradient_accumulation_steps` 1: every pass) copies its gradient
    to the CPU, for `step`. The next pass before the same step, be it of a second forward or of a second loss of the
    same one, copies its own over it: a step is made of the last pass alone. From 0.19.0 on that pass also adds what is
    kept of the steps before, the last pass of each of them; nothing clears it (zero12_offload_left_out_gradients ends
    that part). Nothing fails. Without offload see zero12_several_backwards_drop.
How: a pass at the boundary adds what an earlier pass of the same step has copied, and nothing else, unless the
    optimizer's or the engine's `zero_grad` was called between them. With one pass per step, bit for bit as before. Off
    unless asked for by name: a script that discards a batch by `module.zero_grad()`, or by setting each `.grad` to
    None, trains as in PyTorch because of the fault, and cannot be told from one that adds its passes up: DeepSpeed has
    set each `.grad` to None by then itself.
Changes: a step is longer by the passes that were lost, and from 0.19.0 on free of old gradients. A pass after which
    neither `step` nor the optimizer's or the engine's `zero_grad` is called, a batch to be skipped or a warm-up say,
    now counts: call `engine.zero_grad()` where the script calls `module.zero_grad()`. In a checkpoint written without
    the patch all is intact, but trained on those gradients; Adam's moments are made of them and follow within some
    1 / (1 - beta2) steps. ZenFlow, and in 0.19.8 gradients accumulated in float32 for a model of 16 bits, have code of
    their own and are left alone.
Upstream: not fixed in 0.19.8, and not known to be reported; old gradients since
    https://github.com/deepspeedai/DeepSpeed/pull/7981 (0.19.0).
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it adds such passes up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


def add_copied(optimizer: Any, param: Any) -> None:
    """Add to this pass's gradient what an earlier one has copied; this pass will copy the sum."""
    if getattr(optimizer, "zenflow", False):
        return
    from deepspeed.accelerator import get_accelerator  # type: ignore[import-not-found,unused-ignore]

    stream, param_id = get_accelerator().current_stream(), optimizer.get_param_id(param)
    streams = optimizer.__dict__.setdefault("_dsfix_copied", {})  # on which each was copied
    if param_id in streams:
        group, source_offset, dest_offset, numel = optimizer.grad_position[param_id]
        earlier = optimizer.single_partition_of_fp32_groups[group].grad.view(-1).narrow(0, dest_offset, numel)
        gradient = optimizer.get_param_gradient_attribute(param).view(-1).narrow(0, source_offset, numel)
        if streams[param_id] != stream:
            stream.wait_stream(streams[param_id])
        if not optimizer.cpu_offload_pin_memory and stream is not None:
            stream.synchronize()  # what is not pinned is read at once
        # copied on the stream, and converted there: the host would read before the earlier copy is done
        gradient.add_(earlier.to(gradient.device, non_blocking=True))
    streams[param_id] = stream


PATCH = Patch(
    title="ZeRO-1/2 + optimizer offload: of several backward passes before a step only the last counts",
    severity=Severity.WRONG_RESULT,
    default=False,
    # the fault is older, but nothing older than 0.12.0 has been run
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
            code=f"from {__name__} import add_copied\nadd_copied(self, param)",
        ),
        Edit(
            f"{_OPTIMIZER}.independent_gradient_partition_epilogue",
            after="self._release_ipg_buffers()",
            # up to 0.18.4 it goes on with a zero_grad of its own, which discards nothing
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
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/7981",),
    fixed_in=None,
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    steps = [[regression_batch(rank=0, step=2 * step + i) for i in range(2)] for step in range(_STEPS)]
    model = MLP()
    expected = train(model, steps, model.loss, "SGD", lr=_LEARNING_RATE * 2)  # the sum, not the mean
    last = [step[-1:] for step in steps]
    model = MLP()
    last_only = train(model, last, model.loss, "SGD", lr=_LEARNING_RATE)
    model = MLP()  # with a momentum of 1 a step is made of all gradients so far
    and_old = train(model, last, model.loss, "SGD", lr=_LEARNING_RATE, momentum=1.0)

    model = MLP()
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

    parameters = lab.parameters(engine)
    done = f"after {_STEPS} steps of 2 backward passes"
    difference = largest_difference(parameters, expected.parameters)
    for fault, wrong in (
        ("each step's last pass alone", last_only),
        ("the last passes of each step and all before", and_old),
    ):
        if largest_difference(parameters, wrong.parameters).relative < 1e-4 < difference.relative:
            raise BugPresent(f"{done} the parameters are those of {fault}: {difference}")
    assert difference.relative < 1e-4, f"{done} {difference}"
    return f"{done} the parameters are plain PyTorch's within {difference.relative:.1e}"
