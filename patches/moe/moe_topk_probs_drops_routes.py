"""MoE with k > 2: experts with negative logits are dropped; most tokens reach few experts or none.

Why: from 0.15.0 to 0.18.9, if more tokens choose an expert than it has room for, those with the largest logits are
    kept, selected among the logits of the tokens that chose it and zeros for all others: a negative logit loses against
    every zero. Its route is dropped although the expert has room, and the token's other experts are scaled up; a token
    with only negative logits reaches no expert. Where there is too little room, the routes kept are not those with the
    largest probabilities, which the policy ("probs") promises.
How: the routes are compared by their probabilities, which are never below zero, as in 0.19.0 and later. Which experts a
    token chooses is unchanged.
Changes: layers with k > 2 that drop tokens (the default): more routes are kept, or others, and losses change. A model
    trained without the patch has adapted to the dropped routes: its checkpoint can be resumed, with a jump in the loss.
    DeepSpeed's own TestTopkGate asserts the order by logits through 0.19.0, and fails with the patch.
Workaround: Scripts pass `drop_tokens=False`, or a `capacity_factor` with room for all tokens. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GATING = "deepspeed.moe.sharded_moe:topkgating"

PATCH = Patch(
    title="MoE with k > 2: routes with negative logits are dropped although the expert has room",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.0,<0.19.0"},
    changes=(
        Edit(
            _GATING,
            replace="torch.zeros_like(logits).scatter(1, top_idx, top_gate)",
            code="torch.zeros_like(gates).scatter(1, top_idx, gates.gather(1, top_idx))",
            effect=RAN,
            when="drop_tokens and drop_policy == 'probs'",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5881": "introduced in 0.15.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/7986": "fixed in 0.19.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/8007": "related: adapts its test (0.19.1)",
    },
    fixed_in="0.19.0",
    present=(Source(_GATING, "top_gate, top_idx = torch.topk(logits, k=k, dim=1)"),),
    fixed=(Source(_GATING, "top_gate, top_idx = torch.topk(gates, k=k, dim=1)"),),
    device="cpu",
)

_TOKENS, _WIDTH, _EXPERTS, _K = 32, 8, 8, 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    deepspeed = lab.deepspeed
    from deepspeed.moe import layer, sharded_moe

    if not hasattr(sharded_moe, "topkgating"):
        raise CannotTell(f"{deepspeed.__version__} has no MoE with k > 2")

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            expert = torch.nn.Linear(_WIDTH, _WIDTH)
            self.moe = layer.MoE(_WIDTH, expert, num_experts=_EXPERTS, k=_K, min_capacity=1)

        def forward(self, x: Any) -> Any:
            return self.moe(x)[0]

    torch.manual_seed(0)
    model = Model()
    inputs = lab.models.regression_batch(rank=0, step=0, size=_TOKENS, width=_WIDTH)[0].abs()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    [router] = [name for name in weights if name.endswith("wg.weight")]
    weights[router] = -weights[router].abs()  # makes all logits negative
    model.load_state_dict(weights, strict=False)

    logits = inputs @ weights[router].t()
    probabilities = logits.softmax(dim=1)
    chosen = torch.zeros_like(logits).scatter(1, logits.topk(_K, dim=1).indices, 1.0).bool()
    capacity = _TOKENS * _K // _EXPERTS
    experts = [
        torch.nn.functional.linear(inputs, *(weights[name] for name in weights if f"experts.{i}." in name))
        for i in range(_EXPERTS)
    ]

    def layer_that_keeps_the_largest(scores: Any) -> tuple[dict[str, Any], int]:
        first = scores.where(chosen, 0.0).argsort(dim=0, descending=True, stable=True)[:capacity]
        kept = chosen & torch.zeros_like(scores).scatter(0, first, 1.0).bool()
        gates = probabilities * kept
        gates = gates / gates.sum(dim=1, keepdim=True).clamp(min=torch.finfo(gates.dtype).eps)
        return {"output": sum(gates[:, [i]] * experts[i] for i in range(_EXPERTS))}, int(kept.sum())

    right, all_kept = layer_that_keeps_the_largest(probabilities)
    wrong, few_kept = layer_that_keeps_the_largest(logits)
    routes = _TOKENS * _K

    config = {"train_micro_batch_size_per_gpu": _TOKENS, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    output = {"output": engine(inputs.to(lab.device)).detach().cpu()}
    return lab.reference.compare(
        output,
        right,
        {f"those of {few_kept} routes": wrong},
        after=f"with room for {all_kept} of {routes} routes,",
        what="the layer's outputs",
    )
