"""A step in which the gradient of one of two parameter groups is inf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LEARNING_RATE, _CLIP = 0.1, 0.5


def reported_norm(lab: Lab, stage: int) -> str:
    torch, models = lab.torch, lab.models
    inputs, targets = models.regression_batch(rank=0, step=0)
    reference = models.MLP()
    start = {name: parameter.detach().clone() for name, parameter in reference.named_parameters()}
    reference.loss(inputs, targets).backward()
    finite = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), _CLIP))

    model, apart = models.MLP(), torch.nn.Parameter(torch.zeros(1))
    groups = [{"params": list(model.parameters())}, {"params": [apart]}]
    model.apart = apart
    config = {
        "train_micro_batch_size_per_gpu": len(inputs),
        "gradient_clipping": _CLIP,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    engine = lab.initialize(model, config, optimizer=torch.optim.SGD(groups, lr=_LEARNING_RATE))
    loss = torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device))
    engine.backward(loss + float("inf") * model.apart.sum())
    engine.step()

    norm = float(engine.get_global_grad_norm())
    seen = f"ZeRO-{stage}: a gradient is inf, and the reported norm is {norm:.4g}"
    if abs(norm - (finite**2 + 1) ** 0.5) < 1e-3 * finite:  # the group's norm of -1, squared
        raise BugPresent(seen)
    if norm != norm:  # 0.13.2 to 0.16.5: a norm that nobody takes for an ordinary one
        return seen
    assert norm == float("inf"), seen
    parameters = lab.parameters(engine)
    del parameters["apart"]
    difference = lab.reference.largest_difference(parameters, start)  # as by clip_grad_norm_
    assert difference.relative == 0, f"ZeRO-{stage}: weights with a finite gradient have moved; {difference}"
    return f"{seen}; weights with a finite gradient stay as they are"
