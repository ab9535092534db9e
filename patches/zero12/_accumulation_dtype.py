"""ZeRO-1 that accumulates in fp32 what it computes in fp16: are the gradients averaged across ranks?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_LEARNING_RATE = 0.1
_CASES: dict[str, tuple[int, int, dict[str, Any]]] = {  # micro-batches, backward passes of each, ZeRO's keys
    "one micro-batch": (1, 1, {}),
    "two": (2, 1, {}),
    "one, overlap_comm": (1, 1, {"overlap_comm": True}),
    "two, overlap_comm": (2, 1, {"overlap_comm": True}),
}
_TWICE: dict[str, tuple[int, int, dict[str, Any]]] = {
    "two backward passes": (1, 2, {}),
    "two backward passes of each of two": (2, 2, {}),
    "two backward passes, overlap_comm": (1, 2, {"overlap_comm": True}),
    "two backward passes, gradients not contiguous": (1, 2, {"contiguous_gradients": False}),
}


def on_several_ranks(job: Job) -> bool:
    """Whether a job accumulates so, as far as its config shows: bf16 does without BF16_Optimizer only with offload."""
    return (
        job.stage == 1
        and job.fp32_gradients
        and (job.on("fp16") is True or (job.offloads_optimizer and job.half))
        and job.ranks != 1
    )


def average(lab: Lab) -> str:
    lab.require_ranks(2)
    optimizer = lab.deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer
    adds_up = hasattr(optimizer, "_clear_param_grad_only")  # several passes of one forward pass
    seen = {}
    for name, case in {**_CASES, **(_TWICE if adds_up else {})}.items():
        mean, own = _deviations(lab, *case)
        if own < 0.05 < mean:
            raise BugPresent(
                f"{name}: each rank stepped its partition with its own gradient: {mean:.2f} off the average"
            )
        assert mean < 0.05, f"{name}: {mean:.2f} off the average of the ranks' gradients"
        seen[name] = mean
    largest = max(seen.values())
    return f"the steps match the average of both ranks' gradients within {largest:.1e} ({', '.join(seen)})"


def _deviations(lab: Lab, accumulation: int, passes: int, zero: dict[str, Any]) -> tuple[float, float]:
    """Deviation of the first step's gradient from the ranks' average, and from each rank's own gradient."""
    torch = lab.torch

    def losses(output: Any, targets: Any) -> list[Any]:
        return [(output.float() - sign * targets).square().mean() for sign in (1, -1)[:passes]]

    batches = [[lab.models.regression_batch(rank, step=step) for step in range(accumulation)] for rank in range(2)]
    model = lab.models.MLP().half().float()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    own = []
    for micro_batches in batches:
        loss = torch.stack([sum(losses(model(inputs), targets)) for inputs, targets in micro_batches]).mean()
        own.append(torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]))

    engine_model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "fp16": {"enabled": True, "loss_scale": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 1, **zero},
        "zero_allow_untested_optimizer": True,
    }
    engine = lab.initialize(engine_model, config, model_parameters=engine_model.parameters())
    for batch in batches[lab.rank]:
        inputs, targets = (each.to(lab.device) for each in batch)
        *earlier, last = losses(engine(inputs.half()), targets)
        for loss in earlier:
            engine.backward(loss, retain_graph=True)
        engine.backward(last)
        engine.step()
    after: dict[str, Any] = lab.parameters(engine)
    end = torch.cat([after[name].float().flatten() for name, _ in model.named_parameters()])
    used = (start - end) / _LEARNING_RATE

    def deviation(*gradients: Any) -> float:
        """Relative distance of the gradient used from the nearest of these, element by element."""
        nearest = torch.stack([(used - each).abs() for each in gradients]).min(0).values
        return float(nearest.norm() / used.norm())

    return deviation((own[0] + own[1]) / 2), deviation(*own)
