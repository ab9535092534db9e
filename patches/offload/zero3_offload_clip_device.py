"""ZeRO-3 with optimizer offload and gradient clipping: "Expected all tensors to be on the same device".

Why: 0.14.1 and 0.14.2 compute the norm of all gradients as a tensor on the accelerator, where 0.14.0 and 0.14.3 have a
    Python number. Clipping multiplies the offloaded gradient, which is on the CPU, by it. torch raises at the first
    step whose norm exceeds `gradient_clipping`, whether the first or the thousandth; until then training is correct.
How: moves the factor, one number, to the device of the optimizer's gradients (`self.device`: the CPU with CPU or NVMe
    offload, otherwise the accelerator, where nothing is moved). With `offload_optimizer.ratio` below 1 some gradients
    are still on the accelerator, but a tensor there may be multiplied by a number on the CPU.
Workaround: Scripts wrap `unscale_and_clip_grads`, or edit the line in the installed file, to pass the norm as a Python
    number. You can keep the wrapper; with an edited line the patch is not applied.
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
            # subclasses and other packages may pass a number, which has always worked
            code="if torch.is_tensor(combined_scale):\n    combined_scale = combined_scale.to(self.device)",
            effect="the clipping factor was moved to the gradients' device",
            when="torch.is_tensor(combined_scale) and combined_scale.device.type != torch.device(self.device).type",
        ),
    ),
    symptom=rf"unscale_and_clip_grads[\s\S]*{_MESSAGE}",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5422": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/5538": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/5469": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/5634": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/5585": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5256": "introduced in 0.14.1",
        "https://github.com/deepspeedai/DeepSpeed/pull/5461": "fixed in 0.14.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/5504": "related: restored in 0.14.5, norm on the CPU",
    },
    fixed_in="0.14.3",
    present=(Source(f"{_OPTIMIZER}.step", "scaled_global_grad_norm = torch.norm(torch.stack(norm_groups))"),),
    fixed=(
        Source(f"{_OPTIMIZER}.step", "scaled_global_grad_norm = get_global_norm(norm_list=norm_groups)"),
        # the two hand edits in use, the first wherever it is placed
        Source(_CLIP, "combined_scale.to(self.device)"),
        Source(_CLIP, "self.fp32_partitioned_groups_flat[sub_group_id].grad.mul_(1. / combined_scale.item())"),
        # 0.14.5's form of the fix
        Source(f"{_OPTIMIZER}.complete_grad_norm_calculation_for_cpu_offload", "return total_norm.cpu()"),
    ),
    config=lambda job: job.stage == 3 and job.offloads_optimizer and job.clips,
)

_CLIPPING = 0.01
_LEARNING_RATE = 10.0  # a clipped gradient times this moves the parameters by 0.1
_STEPS = 4


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(
        model, [[batch] for batch in batches], model.loss, "SGD", clip=_CLIPPING, lr=_LEARNING_RATE
    )
    assert min(right.gradient_norms) > _CLIPPING, "a step would not be clipped"

    model = lab.models.MLP()
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
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(right.losses), rtol=1e-4, atol=0)
    return lab.reference.compare(lab.parameters(engine), right.parameters, after=f"after {_STEPS} clipped steps")
