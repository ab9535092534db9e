"""MoE: gates by the formulas of GShard and Switch, the layer as the sum of its experts' outputs."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch

from dsfix.lab.session import Lab
from matrix.parts.areas.losses import compare
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public


def _choices(draw: Draw, counted: bool = True) -> int:
    """k: to 0.14.5 at most 2; `counted`: to 0.14.0 only 1, as the second expert is drawn at random."""
    gate = public("moe.sharded_moe:TopKGate")
    most = 3 if hasattr(inspect.getmodule(gate), "topkgating") else 2
    return draw.integer("k", 1, most if _greedy() or not counted else 1)


def _greedy() -> dict[str, Any]:
    """The option with which the second expert is not drawn at random, where the release has it."""
    name = "top2_2nd_expert_sampling"
    return {name: False} if name in inspect.signature(public("moe.sharded_moe:TopKGate").__init__).parameters else {}


def _kept(scores: torch.Tensor, k: int, capacity: float, least: int, drop: bool) -> torch.Tensor:
    """Which routes have a place: of the largest k of each token, in the order of DeepSpeed's documentation."""
    tokens, experts = scores.shape
    chosen = scores.topk(k, dim=1).indices
    room = max(math.ceil(tokens / experts * capacity * k), least) if drop else tokens
    kept = torch.zeros(tokens, experts, dtype=torch.bool)
    if k > 2:  # the largest probabilities
        for expert in range(experts):
            routes = [token for token in range(tokens) if expert in chosen[token]]
            for token in sorted(routes, key=lambda token: -float(scores[token, expert]))[:room]:
                kept[token, expert] = True
        return kept
    taken = [0] * experts
    for place in range(k):  # all first choices before the second
        for token in range(tokens):
            expert = int(chosen[token, place])
            kept[token, expert] = taken[expert] < room
            taken[expert] += 1
    return kept


@part("moe/MoE", "the sum of the chosen experts' outputs, weighted by their probabilities", examples=150)
def _layer(lab: Lab, draw: Draw) -> None:
    moe = public("moe.layer:MoE")
    k, experts = _choices(draw), draw.integer("experts", 3, 4)
    options = {
        "capacity_factor": draw("capacity_factor", (1.0, 0.5, 2.0)),
        "eval_capacity_factor": draw("eval_capacity_factor", (1.0, 0.5)),
        "min_capacity": draw("min_capacity", (1, 4, 0)),
        "drop_tokens": draw("drop_tokens", (True, False)),
        "use_residual": draw.flag("use_residual"),
    }
    shape = (draw.integer("samples", 1, 2), draw.integer("length", 4, 8), 4)
    layer = moe(4, torch.nn.Linear(4, 4), experts, k=k, use_rts=False, **options, **_greedy())
    layer.set_deepspeed_parallelism()
    trained = draw.flag("training")
    layer.train(trained)
    x = draw.tensor("x", shape).requires_grad_()
    capacity = options["capacity_factor" if trained else "eval_capacity_factor"]
    gate = layer.deepspeed_moe.gate.wg.weight
    own = layer.deepspeed_moe.experts.deepspeed_experts

    def reference() -> torch.Tensor:
        rows = x.reshape(-1, 4)
        scores = (rows.float() @ gate.float().t()).softmax(dim=1)
        kept = _kept(scores.detach(), k, capacity, options["min_capacity"], options["drop_tokens"])
        weights = scores * kept
        if k > 1:
            weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).eps)
        outputs = [weights[:, [i]] * own[i](rows) for i in range(experts)]
        found = torch.stack(outputs).sum(0).view(shape)
        if options["use_residual"]:
            share = layer.coefficient(x).softmax(-1)
            found = found * share[..., :1] + layer.mlp(x) * share[..., 1:]
        return found

    if k == 1:  # which routes of a full expert are kept is not documented
        scores = (x.reshape(-1, 4) @ gate.t()).softmax(1).detach()
        draw.assume(bool(_kept(scores, 1, capacity, options["min_capacity"], options["drop_tokens"]).any(1).all()))
    compare(draw, lambda: layer(x)[0], reference, [x, gate, own[0].weight], within=1e-4)


@part("moe/used_token", "its documentation: tokens that are not used have no expert", examples=100)
def _used(lab: Lab, draw: Draw) -> None:
    k, tokens = _choices(draw, counted=False), draw.integer("tokens", 4, 8)
    gate = public("moe.sharded_moe:TopKGate")(
        4, 3, k=k, min_capacity=0, capacity_factor=2.9 / k
    )  # of all tokens: more fails to 0.19.3
    used = torch.tensor([draw.integer(f"used {each}", 0, 1) for each in range(tokens)])
    counts = gate(draw.tensor("x", (tokens, 4)), used)[-1]
    same(int(counts.sum()), k * int(used.sum()), "routes")


@part("moe/auxiliary loss", "GShard: the number of experts times the sum of mean probability times share", examples=100)
def _auxiliary(lab: Lab, draw: Draw) -> None:
    k, experts, tokens = _choices(draw), draw.integer("experts", 3, 4), draw.integer("tokens", 4, 9)
    gate = public("moe.sharded_moe:TopKGate")(4, experts, k=k, min_capacity=0, **_greedy())
    x = draw.tensor("x", (tokens, 4))
    scores = (x @ gate.wg.weight.t()).softmax(1)
    chosen = torch.zeros_like(scores).scatter(1, scores.topk(1 if k == 2 else k, dim=1).indices, 1.0)
    found = gate(x)
    same(found[0], (scores.mean(0) * chosen.mean(0)).sum() * experts / (k if k > 2 else 1), "loss", 1e-4)
    routes = torch.zeros_like(scores).scatter(1, scores.topk(k, dim=1).indices, 1.0).sum(0).long()
    same(found[-1].long(), routes, "expert counts")


@part("moe/split_params_into_different_moe_groups_for_optimizer", "each parameter once, with its group's options")
def _groups(lab: Lab, draw: Draw) -> None:
    split = public("moe.utils:split_params_into_different_moe_groups_for_optimizer")
    weights = [torch.nn.Parameter(torch.zeros(number + 1)) for number in range(draw.integer("parameters", 1, 6))]
    for number, each in enumerate(weights):
        if draw.flag(f"expert {number}"):
            each.allreduce, each.group_name = False, draw(f"group of {number}", ("ep_size_1", "ep_size_2"))
    cut = draw.integer("cut", 0, len(weights))
    names = draw("names", (({"name": "a"}, {"name": "b"}), ({}, {}), ({"name": "a"}, {"name": "a"})))
    given = [{"params": weights[:cut], "lr": 0.1, **names[0]}, {"params": weights[cut:], "lr": 0.2, **names[1]}]
    given = [each for each in given if each["params"]]
    rates = {id(p): group["lr"] for group in given for p in group["params"]}
    found = split(tuple(given) if draw.flag("tuple") else given, max_group_size=draw("max_group_size", (178956971, 3)))
    seen = {id(p): group["lr"] for group in found for p in group["params"]}
    same(sum(len(group["params"]) for group in found), len(weights), "number of parameters")
    same(seen, rates, "rates")
    for group in found:
        names = {getattr(p, "group_name", "") for p in group["params"]}
        assert len(names) <= 1, f"a group has experts of {names}"
