"""The tokens that a layer with experts is told to route, for a gate with k >= 2, and the reproductions of its bug."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, CannotTell, Edit

if TYPE_CHECKING:
    from dsfix.lab import Lab

MODULE = "deepspeed.moe.sharded_moe"
GATING = f"{MODULE}:top2gating"


def keep_used(gate: Any, logits: Any, used: Any) -> None:
    """Note which tokens are used, where their logits are; all if none is, or if k = 1 does not take the mask."""
    import torch

    if gate.k > 1 and torch.is_tensor(used) and used.shape == logits.shape[:1]:
        used = used.to(logits.device)[:, None] != 0
        logits.dsfix_used = used | ~used.any()


def of_used(logits: Any, *masks: Any) -> Any:
    """The tensors [tokens, experts], with zeros for tokens that are not used."""
    used = getattr(logits, "dsfix_used", None)
    return masks if used is None else tuple(mask * used for mask in masks)


EDITS = (
    Edit(
        f"{MODULE}:TopKGate.forward",
        before="if self.k == 1:\n    ...\nelse:\n    ...",
        code="if used_token is not None:\n    keep_used(self, logits, used_token)",
        uses=(keep_used,),
    ),
    Edit(
        GATING,
        after="mask2 = F.one_hot(indices2_s, num_classes=num_experts)",
        code="mask1, mask2 = of_used(logits, mask1, mask2)",
        uses=(of_used,),
        effect=RAN,  # whether a token is not used
        when="hasattr(logits, 'dsfix_used')",
    ),
)

_TOKENS, _USED, _WIDTH, _EXPERTS, _PLACES = 16, 6, 8, 4, 3


def compute(lab: Lab, k: int) -> str:
    """What a layer computes with places for few tokens, of which the last are used, compared with plain PyTorch."""
    torch = lab.torch
    _ = lab.deepspeed
    from deepspeed.moe import sharded_moe  # type: ignore[import-not-found,unused-ignore]
    from deepspeed.moe.layer import MoE  # type: ignore[import-not-found,unused-ignore]

    from ._experts import run_eagerly

    if k > 2 and not hasattr(sharded_moe, "topkgating"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no routing to more than two experts")
    run_eagerly()
    # the second expert is the second best
    sharded_moe.gumbel_rsample = lambda shape, device: torch.zeros(shape, device=device)
    torch.manual_seed(0)
    places = _PLACES * _EXPERTS / _TOKENS / k
    options = {"k": k, "capacity_factor": places, "min_capacity": 0}
    layer = MoE(_WIDTH, torch.nn.Linear(_WIDTH, _WIDTH), _EXPERTS, **options)
    for each in layer.deepspeed_moe.experts.deepspeed_experts:
        torch.nn.init.normal_(each.weight)
    inputs = torch.randn(_TOKENS, _WIDTH)
    used = torch.arange(_TOKENS) >= _TOKENS - _USED
    right, all_used = (_plain(torch, layer.deepspeed_moe, inputs, only, k) for only in (used, torch.ones_like(used)))

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.moe = layer

        def forward(self, x: Any) -> Any:
            return self.moe(x, used.to(x.device))

    model = Model()
    config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    engine = lab.initialize(model, config, model_parameters=list(model.parameters()))
    output, loss, _ = engine(inputs.to(lab.device))
    seen = {"output": output.detach().cpu(), "auxiliary loss": loss.detach().cpu()}
    return lab.reference.compare(
        seen,
        right,
        {"those of all tokens": all_used},
        after=f"with {_USED} of {_TOKENS} tokens used and k = {k},",
        what="the layer's outputs and auxiliary loss",
    )


def _plain(torch: Any, layer: Any, inputs: Any, used: Any, k: int) -> dict[str, Any]:
    """The layer's output and auxiliary loss; an expert has few places."""
    gates = layer.gate.wg(inputs).softmax(dim=1)
    choices = [torch.nn.functional.one_hot(i, _EXPERTS) * used[:, None] for i in gates.topk(k, dim=1).indices.t()]
    if k == 2:  # first choices first, in the order of the tokens
        counted, routes = choices[0], torch.cat(choices)
        kept = sum((routes * (routes.cumsum(dim=0) <= _PLACES)).split(_TOKENS))
    else:  # the most probable
        counted = sum(choices)
        first = (gates * counted).argsort(dim=0, descending=True)[:_PLACES]
        kept = counted * torch.zeros_like(counted).scatter(0, first, 1)
    loss = (gates.mean(dim=0) * counted.float().mean(dim=0)).mean() * _EXPERTS**2 / (1 if k == 2 else k)
    weights = gates * kept
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).eps)
    mixed = sum(weights[:, [i]] * expert(inputs) for i, expert in enumerate(layer.experts.deepspeed_experts))
    return {"output": mixed.detach(), "auxiliary loss": loss.detach()}
