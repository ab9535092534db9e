"""Evaluations of a layer with experts, of which tokens are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

_TOKENS, _WIDTH, _EXPERTS = 32, 8, 4


def evaluate(lab: Lab) -> str:
    """Two evaluations, compared with each other and with one without chance; and two training passes."""
    torch = lab.torch
    _ = lab.deepspeed
    from deepspeed.moe import layer, sharded_moe  # type: ignore[import-not-found,unused-ignore]

    for k in (1, 2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            layer.MoE(
                _WIDTH, torch.nn.Linear(_WIDTH, _WIDTH), _EXPERTS, k=k, capacity_factor=0.5, eval_capacity_factor=0.5,
                min_capacity=0,
            )
        )  # fmt: skip
        for each in model[0].deepspeed_moe.experts.deepspeed_experts:
            torch.nn.init.normal_(each.weight)
        engine = lab.initialize(
            model, {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, model_parameters=list(model.parameters())
        )
        inputs = torch.randn(_TOKENS, _WIDTH).to(lab.device)
        moe, gate = engine.module[0], engine.module[0].deepspeed_moe.gate

        engine.train()
        one, other = moe(inputs)[0], moe(inputs)[0]
        assert not torch.equal(one, other), f"k = {k}: there is no chance in training"
        engine.eval()
        with torch.no_grad():
            drawn = torch.get_rng_state() if lab.device.type == "cpu" else torch.cuda.get_rng_state()
            one = moe(inputs)[0]
            after = torch.get_rng_state() if lab.device.type == "cpu" else torch.cuda.get_rng_state()
            if not torch.equal(one, moe(inputs)[0]):
                raise BugPresent(f"k = {k}: two evaluations of the same input differ")
            assert not torch.equal(drawn, after), f"k = {k}: no random numbers were drawn"
            gate.use_rts = gate.top2_2nd_expert_sampling = False
            noise, sharded_moe.gumbel_rsample = (
                sharded_moe.gumbel_rsample,
                lambda shape, device: torch.zeros(shape, device=device),
            )
            try:
                right = moe(inputs)[0]
            finally:
                sharded_moe.gumbel_rsample = noise
            assert torch.equal(one, right), f"k = {k}: the evaluation is not that without chance"
    return "with k = 1 and k = 2, evaluations are the same, and those without chance"
