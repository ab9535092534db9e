"""A layer with experts that have room for all tokens, compared with plain PyTorch. Importing this imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dsfix.patch import BugPresent, CannotTell

from . import _experts

if TYPE_CHECKING:
    from dsfix.lab import Lab

_TOKENS, _WIDTH, _EXPERTS = 6, 8, 4


class _Mixture(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, lab: Lab, ep_size: int, **options: Any) -> None:
        super().__init__()
        from deepspeed.moe.layer import MoE  # type: ignore[import-not-found,unused-ignore]

        torch.manual_seed(0)
        router = nn.Linear(_WIDTH, _EXPERTS, bias=False)
        experts = [nn.Linear(_WIDTH, _WIDTH) for _ in range(_EXPERTS)]
        self.moe = MoE(_WIDTH, nn.Linear(_WIDTH, _WIDTH), _EXPERTS, ep_size, use_rts=False, **options)
        layer = self.moe.deepspeed_moe
        layer.gate.wg.load_state_dict(router.state_dict())
        own = layer.experts.deepspeed_experts
        for number, expert in enumerate(own, start=lab.rank % ep_size * len(own)):
            expert.load_state_dict(experts[number].state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.moe(x)[0]
        return result


def _plain(x: torch.Tensor, k: int) -> torch.Tensor:
    torch.manual_seed(0)
    router = nn.Linear(_WIDTH, _EXPERTS, bias=False)
    experts = [nn.Linear(_WIDTH, _WIDTH) for _ in range(_EXPERTS)]
    probabilities = router(x).softmax(dim=1)
    weights = probabilities * torch.zeros_like(probabilities).scatter(1, probabilities.topk(k, dim=1).indices, 1.0)
    if k > 1:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return torch.stack([weights[:, [number]] * expert(x) for number, expert in enumerate(experts)]).sum(dim=0)


def compute(lab: Lab, k: int, error: str, **options: Any) -> str:
    """The output of layers with k experts per token, and the gradient of its input, on two ranks.

    Raises:
        BugPresent: the forward pass ends with an error that says so.
    """
    _ = lab.deepspeed
    from deepspeed.moe import sharded_moe

    if k > 2 and not hasattr(sharded_moe, "topkgating"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no routing to more than two experts")
    _experts.run_eagerly()
    # if no token is dropped, ranks agree on the capacity, and may have different numbers of tokens
    tokens = _TOKENS if options.get("drop_tokens", True) else _TOKENS - 3 * lab.rank
    reports = []
    for ep_size in (1, 2):
        model = _Mixture(lab, ep_size, k=k, **options)
        config = {"train_micro_batch_size_per_gpu": _TOKENS, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
        engine = lab.initialize(model, config, model_parameters=_experts.groups(model))
        x = torch.randn(tokens, _WIDTH, generator=torch.Generator().manual_seed(lab.rank))
        given, same = x.to(lab.device).requires_grad_(), x.clone().requires_grad_()
        try:
            output = engine(given)
        except (RuntimeError, UnboundLocalError) as raised:
            if error in str(raised):
                raise BugPresent(str(raised).strip().splitlines()[-1]) from raised
            raise
        engine.backward(output.pow(2).sum())
        right = _plain(same, k)
        right.pow(2).sum().backward()  # type: ignore[no-untyped-call,unused-ignore]
        assert given.grad is not None
        assert same.grad is not None
        reports.append(
            lab.reference.compare(
                {"output": output.detach().cpu(), "gradient": given.grad.cpu()},
                {"output": right.detach(), "gradient": same.grad},
                {},
                after=f"with k = {k} and ep_size {ep_size}",
                what="the layer's outputs and its input's gradients",
            )
        )
    return "; ".join(reports)
