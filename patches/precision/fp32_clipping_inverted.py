"""Gradient clipping in fp32 without ZeRO: large gradients are not clipped, and small ones are enlarged to the limit.

Why: 0.13.2 uses the larger of 1 and `gradient_clipping` / norm as the factor instead of the smaller one. Every gradient
    below the limit is multiplied until its norm is the limit, and one above it stays as it is. The same function clips
    with `amp`. Nothing fails.
How: the factor is the smaller of the two, as in upstream's fix.
Changes: jobs without ZeRO, fp16 and bf16 that set `gradient_clipping`: their gradients are clipped. When such a job
    resumes from a checkpoint written without the patch, Adam's moments still come from the enlarged gradients and its
    first steps are too small; warm up again, or resume without the optimizer state.
Workaround: Scripts clip by `torch.nn.utils.clip_grad_norm_`, without `gradient_clipping` in the config.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab


def _meets(job: Job) -> bool:
    return job.stage == 0 and job.clips and job.on("fp16") is False and job.on("bf16") is False


PATCH = Patch(
    title="fp32 without ZeRO: gradient clipping enlarges small gradients and does not limit large ones",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": "==0.13.2"},
    changes=(
        Edit(
            "deepspeed.runtime.utils:clip_grad_norm_",
            replace="torch.max(tmp_tensor, clip_coef)",
            code="torch.min(tmp_tensor, clip_coef)",
            effect=RAN,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5150": "fixed in 0.13.3",
    },
    fixed_in="0.13.3",
    config=_meets,
)

_LEARNING_RATE, _STEPS = 0.05, 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def plain(limit: float, inverted: bool) -> tuple[dict[str, Any], list[float]]:
        model: Any = lab.models.MLP()
        optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
        norms = []
        for inputs, targets in batches:
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            norms.append(float(torch.stack([gradient.norm() for gradient in gradients]).norm()))
            factor = limit / (norms[-1] + 1e-6)
            for gradient in gradients:
                gradient.mul_(max(1.0, factor) if inverted else min(1.0, factor))
            optimizer.step()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}, norms

    def trained(limit: float) -> str:
        model: Any = lab.models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "gradient_clipping": limit,
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, targets in batches:
            outputs = engine(inputs.to(lab.device))
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
        right, norms = plain(limit, inverted=False)
        return lab.reference.compare(
            lab.parameters(engine),
            right,
            {"those of the larger factor": plain(limit, inverted=True)[0]},
            after=f"after {_STEPS} steps clipped at {limit}, of norms {min(norms):.2f} to {max(norms):.2f},",
        )

    return "; ".join(trained(limit) for limit in (0.1, 100.0))
