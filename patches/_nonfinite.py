"""A step in which the gradient of one parameter group is inf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LEARNING_RATE = 0.1
_CLIP = 0.5


def reported_norm(lab: Lab, stage: int) -> str:
    torch = lab.torch
    inputs, targets = lab.models.regression_batch(rank=0, step=0)
    apart = torch.nn.Parameter(torch.zeros(1))
    reference = lab.models.MLP()
    reference.loss(inputs, targets).backward()
    finite = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), float("inf")))

    model = lab.models.MLP()
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model.apart = apart
    config = {
        "train_micro_batch_size_per_gpu": len(inputs),
        "gradient_clipping": _CLIP,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    ordinary = [parameter for name, parameter in model.named_parameters() if name != "apart"]
    optimizer = torch.optim.SGD([{"params": ordinary}, {"params": [apart]}], lr=_LEARNING_RATE)
    engine = lab.initialize(model, config, optimizer=optimizer)
    loss = torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device))
    engine.backward(loss + float("inf") * model.apart.sum())
    engine.step()

    norm = float(engine.get_global_grad_norm())
    if norm != norm or abs(norm - (finite**2 + 1) ** 0.5) < 1e-3 * norm:
        raise BugPresent(f"ZeRO-{stage}: a gradient is inf, and the reported norm is {norm:.4g}")
    assert norm == float("inf"), f"ZeRO-{stage}: a gradient is inf, and the reported norm is {norm}"
    parameters = lab.parameters(engine)
    parameters.pop("apart")
    # clipped by an infinite norm, or the step is skipped
    difference = lab.reference.largest_difference(parameters, start)
    assert difference.relative == 0, f"ZeRO-{stage}: weights with a finite gradient have moved; {difference}"
    return f"ZeRO-{stage}: a gradient is inf, and so is the reported norm"
