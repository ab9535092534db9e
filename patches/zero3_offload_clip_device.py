"""ZeRO-3 with optimizer offload and gradient clipping: "Expected all tensors to be on the same device".

Why: 0.14.1 and 0.14.2 compute the norm of all gradients as a tensor on the accelerator, where 0.14.0 and 0.14.3 have a
    Python number. Clipping multiplies the offloaded gradient, which is on the CPU, by it. torch refuses that at the
    first step whose norm exceeds `gradient_clipping`, be it the first or the thousandth; up to there all is well.
How: moves the factor, one number, to where the optimizer's gradients are (`self.device`: the CPU with CPU or NVMe
    offload, else the accelerator, and then nothing is moved). With `offload_optimizer.ratio` below 1 some gradients are
    on the accelerator all the same, but a tensor there may be multiplied by a number on the CPU.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/5422 and 5538, 5469, 5634, 5585, brought by
    https://github.com/deepspeedai/DeepSpeed/pull/5256, reverted by https://github.com/deepspeedai/DeepSpeed/pull/5461
    (0.14.3), brought back by https://github.com/deepspeedai/DeepSpeed/pull/5504 (0.14.5) with the norm on the CPU.
Retire: when DeepSpeed 0.14.2 is no longer supported here.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_CLIP = f"{_OPTIMIZER}.unscale_and_clip_grads"
_MESSAGE = "Expected all tensors to be on the same device"

PATCH = Patch(
    title="ZeRO-3 + optimizer offload + gradient clipping: RuntimeError, tensors on cuda and cpu",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.14.1,<0.14.3"},
    changes=(
        Edit(
            _CLIP,
            after="combined_scale = clip * self.loss_scale",
            # a number where a subclass or another package passes one: that has always worked
            code="if torch.is_tensor(combined_scale):\n    combined_scale = combined_scale.to(self.device)",
        ),
    ),
    symptom=rf"unscale_and_clip_grads[\s\S]*{_MESSAGE}",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/5422",
        "https://github.com/deepspeedai/DeepSpeed/issues/5538",
        "https://github.com/deepspeedai/DeepSpeed/issues/5469",
        "https://github.com/deepspeedai/DeepSpeed/issues/5634",
        "https://github.com/deepspeedai/DeepSpeed/pull/5461",
    ),
    fixed_in="0.14.3",
    present=(Source(f"{_OPTIMIZER}.step", "scaled_global_grad_norm = torch.norm(torch.stack(norm_groups))"),),
    fixed=(
        Source(f"{_OPTIMIZER}.step", "scaled_global_grad_norm = get_global_norm(norm_list=norm_groups)"),
        # the two hand edits in use, the first at whichever place
        Source(_CLIP, "combined_scale.to(self.device)"),
        Source(_CLIP, "self.fp32_partitioned_groups_flat[sub_group_id].grad.mul_(1. / combined_scale.item())"),
        # 0.14.5's form of the fix
        Source(f"{_OPTIMIZER}.complete_grad_norm_calculation_for_cpu_offload", "return total_norm.cpu()"),
    ),
)

_CLIPPING = 0.01
_LEARNING_RATE = 10.0  # a clipped gradient times this moves the parameters by 0.1
_STEPS = 4


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = MLP()
    expected = train(model, [[batch] for batch in batches], model.loss, "SGD", clip=_CLIPPING, lr=_LEARNING_RATE)
    assert min(expected.gradient_norms) > _CLIPPING, "a step would not be clipped"

    model = MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_clipping": _CLIPPING,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    losses = []
    for inputs, targets in batches:
        loss = torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device))
        engine.backward(loss)
        try:
            engine.step()
        except RuntimeError as error:
            passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            if _MESSAGE in str(error) and "unscale_and_clip_grads" in passed:
                raise BugPresent(f"in unscale_and_clip_grads: {str(error).splitlines()[0]}") from error
            raise
        losses.append(loss.item())
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected.losses), rtol=1e-4, atol=0)
    difference = largest_difference(lab.parameters(engine), expected.parameters)
    assert difference.relative < 1e-4, f"after {_STEPS} steps {difference}"
    return f"after {_STEPS} clipped steps the parameters are plain PyTorch's within {difference.relative:.1e}"
