"""Evaluations of a layer with experts, and plain PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

_TOKENS, _WIDTH, _EXPERTS = 32, 8, 4


def evaluate(lab: Lab) -> str:
    """Evaluations of top-2 routing, with places for all tokens and for some, compared with PyTorch's and each other."""
    torch = lab.torch
    _ = lab.deepspeed
    from deepspeed.moe import sharded_moe  # type: ignore[import-not-found,unused-ignore]

    for places in (_EXPERTS / 2, 0.5):
        engine = _engine(lab, places)
        moe = engine.module[0]
        inputs = torch.randn(_TOKENS, _WIDTH).to(lab.device)
        one, other = moe(inputs)[0], moe(inputs)[0]
        assert not torch.equal(one, other), "the second expert is not drawn in training"
        engine.eval()
        with torch.no_grad():
            torch.manual_seed(1)
            one = moe(inputs)[0]
            after = torch.rand(4, device=lab.device)
            if not torch.equal(one, moe(inputs)[0]):
                raise BugPresent("two evaluations of the same input differ")
            torch.manual_seed(1)
            sharded_moe.gumbel_rsample((_TOKENS, _EXPERTS), device=lab.device)
            assert torch.equal(after, torch.rand(4, device=lab.device)), "what is drawn after an evaluation differs"
            if places == _EXPERTS / 2:
                torch.testing.assert_close(one, _two_best(torch, moe.deepspeed_moe, inputs))
        engine.train()
        one, other = moe(inputs)[0], moe(inputs)[0]
        assert not torch.equal(one, other), "the second expert is not drawn in training after an evaluation"
    return (
        "evaluations of top-2 routing are the same, and plain PyTorch's; training goes on with the same random numbers"
    )


def _engine(lab: Lab, places: float) -> Any:
    """places: for tokens, as a multiple of what an even load needs."""
    from deepspeed.moe.layer import MoE  # type: ignore[import-not-found,unused-ignore]

    from ._experts import run_eagerly

    torch = lab.torch
    run_eagerly()
    torch.manual_seed(0)
    options = {"k": 2, "capacity_factor": places, "eval_capacity_factor": places, "min_capacity": 0}
    model = torch.nn.Sequential(MoE(_WIDTH, torch.nn.Linear(_WIDTH, _WIDTH), _EXPERTS, **options))
    for each in model[0].deepspeed_moe.experts.deepspeed_experts:
        torch.nn.init.normal_(each.weight)
    config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    return lab.initialize(model, config, model_parameters=list(model.parameters()))


def _two_best(torch: Any, layer: Any, inputs: Any) -> Any:
    """Each token's two best experts, by their weights."""
    weights, chosen = layer.gate.wg(inputs).softmax(dim=1).topk(2, dim=1)
    weights = weights / weights.sum(dim=1, keepdim=True)
    outputs = torch.stack([each(inputs) for each in layer.experts.deepspeed_experts])
    rows = torch.arange(len(inputs), device=inputs.device)
    return sum(weights[:, [place]] * outputs[chosen[:, place], rows] for place in range(2))
