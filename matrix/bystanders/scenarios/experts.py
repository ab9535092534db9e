"""DeepSpeed's MoE layer, with and without enough expert capacity for all tokens."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_EXPERTS = 4
_FITS: Any = {
    "stage": "012",
    "offload": ("none",),
    "precision": ("fp32", "bf16"),
    "partitioning": ("parameters persist",),
}

# by powers of two, so that the order of divisions changes no bit
_ALIKE: Any = {"reference": False, "ranks": ("2", "4"), "accumulation": ("1", "2"), **_FITS}


def _model(job: Job, k: int, room: float, ep_size: int = 1, **options: Any) -> Any:
    """room: expert capacity as a multiple of the average load."""
    nn = job.torch.nn
    job.torch.manual_seed(0)
    below, head = nn.Linear(16, 16), nn.Linear(16, 1)
    experts = [nn.Linear(16, 16) for _ in range(_EXPERTS)]
    router = nn.Linear(16, _EXPERTS, bias=False)
    if job.plain:
        names = {f"deepspeed_moe.experts.deepspeed_experts.{number}": each for number, each in enumerate(experts)}
        moe: Any = _plain(job, k, {"deepspeed_moe.gate.wg": router, **names})
    else:
        if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
            job.torch.compiler.set_stance("force_eager")  # parts of it are compiled on first use
        options = {"use_rts": False, "top2_2nd_expert_sampling": False, "min_capacity": 1, **options}
        make = importlib.import_module("deepspeed.moe.layer").MoE
        moe = make(16, experts[0], _EXPERTS, ep_size, k=k, capacity_factor=room, **options)
        kept = moe.deepspeed_moe
        for number, each in enumerate(kept.experts.deepspeed_experts):
            own = number if ep_size == 1 else job.rank % ep_size * len(kept.experts.deepspeed_experts) + number
            each.load_state_dict(experts[own].state_dict())
        kept.gate.wg.load_state_dict(router.state_dict())

    def forward(self: Any, x: Any) -> Any:
        found = self.moe(self.below(x).tanh())
        return self.head(found if job.plain else found[0])

    return job.model(forward, below=below, moe=moe, head=head)


def _plain(job: Job, k: int, parts: dict[str, Any]) -> Any:
    """The layer without DeepSpeed: the k highest gate weights, normalized to sum to 1 for k > 1."""

    def forward(self: Any, x: Any) -> Any:
        router, *experts = parts.values()
        probabilities = router(x.float()).softmax(dim=1)
        chosen = job.torch.zeros_like(probabilities).scatter(1, probabilities.topk(k, dim=1).indices, 1.0)
        weights = probabilities * chosen
        if k > 1:
            weights = weights / weights.sum(dim=1, keepdim=True)
        return sum(weights[:, [number]] * expert(x) for number, expert in enumerate(experts))

    model = job.model(forward)
    for path, part in parts.items():  # with DeepSpeed's names
        at = model
        *way, last = path.split(".")
        for name in way:
            if not hasattr(at, name):
                at.add_module(name, job.torch.nn.Module())
            at = getattr(at, name)
        at.add_module(last, part)
    return model


def _trained(job: Job, model: Any) -> None:
    parameters: Any = list(model.parameters())
    if not job.plain and job.stage:
        split = importlib.import_module("deepspeed.moe.utils").split_params_into_different_moe_groups_for_optimizer
        parameters = split({"params": parameters, "name": "all"})
    engine = job.engine(model, parameters)
    for step in range(3):
        job.train(engine, step)


@scenario(
    "top-1 routing, with capacity for all tokens",
    pinned=[{"stage": "1"}],
    works_around=("zero12_experts_gradients_too_large",),
    **_FITS,
)
def experts_best(job: Job) -> None:
    _trained(job, _model(job, 1, _EXPERTS))


@scenario("top-2 routing, with capacity for all tokens", pinned=[{"stage": "2"}], **_FITS)
def experts_two(job: Job) -> None:
    _trained(job, _model(job, 2, _EXPERTS))


@scenario(
    "top-3 routing, with capacity for all tokens",
    pinned=[{"stage": "0"}, {"stage": "2", "precision": "bf16", "ranks": "1"}],
    works_around=("moe_topk_probs_drops_routes",),
    **_FITS,
)
def experts_three(job: Job) -> None:
    _trained(job, _model(job, 3, _EXPERTS / 3))


@scenario("top-3 routing, and no token is dropped", works_around=("moe_topk_probs_drops_routes",), **_FITS)
def experts_three_undropped(job: Job) -> None:
    _trained(job, _model(job, 3, 1.0, drop_tokens=False))


@scenario("experts on two ranks, with capacity for all tokens", **_ALIKE)
def experts_on_two_ranks(job: Job) -> None:
    _trained(job, _model(job, 3, _EXPERTS / 3, ep_size=2))


@scenario(
    "top-1 routing to experts on two ranks, with too little capacity",
    **_ALIKE,
)
def experts_short_of_room(job: Job) -> None:
    _trained(job, _model(job, 1, 1.0, ep_size=2))
