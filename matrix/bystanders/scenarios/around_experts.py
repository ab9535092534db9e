"""Experts, in scripts that work around one of DeepSpeed's bugs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

from dsfix.lab import half
from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import experts, experts_tutel, experts_undropped
from matrix.bystanders.scenarios.around_zero3 import _one

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_TWO: Any = {"stage": "0", "partitioning": "parameters persist", "ranks": "2"}
_LIMIT = 0.2


def _trained(
    job: Job,
    change: Callable[[Any], None] = lambda engine: None,
    clip: bool = False,
    optimizer: Any = None,
    **config: Any,
) -> None:
    """Two ranks share the experts. clip: the script clips the gradients."""
    from dsfix.lab import experts

    model: Any = experts.Mixture() if job.plain else experts.Sharded(job._lab, 2)
    if clip and job.plain:
        config = {"gradient_clipping": _LIMIT}
    engine = job.engine(model, None if job.plain else model.groups(), optimizer, **config)
    if not job.plain:
        change(engine)
    named = dict if job.plain else model.named
    initial = {
        name: each.detach().float().cpu().clone() for name, each in named(dict(model.named_parameters())).items()
    }
    for step in range(3):
        engine.backward(job.loss(engine, job.batch(step)))
        if clip and not job.plain:
            _clip(job, model)
        engine.step()
        for name, parameter in named(job.weights(engine)).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name])


def _clip(job: Job, model: Any) -> None:
    """Each gradient counts once, however many ranks hold it."""
    square = job.torch.zeros(())
    for each in model.parameters():
        copies = job.world_size if getattr(each, "allreduce", True) else 1
        square += each.grad.float().norm().square().cpu() / copies
    job.torch.distributed.all_reduce(square)
    share = min(1.0, _LIMIT / (float(square.sqrt()) + 1e-6))
    for each in model.parameters():
        each.grad.mul_(share)


@scenario("gradients of experts on two ranks are clipped by the script, in fp32 without ZeRO",
    works_around=("experts_clipped_by_averaged_norms",), release="0.18.9", **_one(**_TWO))  # fmt: skip
def experts_clipped_by_hand(job: Job) -> None:
    _trained(job, clip=True)


@scenario("gradients of experts on two ranks are clipped by the script, in fp16 without ZeRO",
    works_around=("fp16_experts_norm_of_weights",), release="0.18.9",
    **_one(**_TWO, precision="fp16", optimizer="client's AdamW"))  # fmt: skip
def half_experts_clipped_by_hand(job: Job) -> None:
    def fused(given: Any) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    _trained(job, clip=True, optimizer=fused, fp16={"loss_scale": 1.0})


@scenario("gradients of experts on two ranks are reduced by the script, without ZeRO",
    works_around=("experts_gradients_too_large_without_zero",), release="0.13.1", **_one(**_TWO))  # fmt: skip
def experts_reduced_by_hand(job: Job) -> None:
    def reduce(gradients: dict[str, Any], _: int) -> None:
        comm, groups = (importlib.import_module(f"deepspeed.{name}") for name in ("comm", "utils.groups"))
        for name, tensors in gradients.items():
            for each in tensors:
                each.div_(job.world_size)
                comm.all_reduce(each, group=groups._get_expert_data_parallel_group(name))

    _trained(job, lambda engine: setattr(engine, "_reduce_expert_gradients", reduce))


@scenario("top-2 routing, no token is dropped, with a capacity factor that has room for all tokens",
    works_around=("moe_top2_drops_tokens",), release="0.13.1", **_one(**_TWO))  # fmt: skip
def two_of_experts_with_room(job: Job) -> None:
    room = experts._EXPERTS / 2
    experts_undropped._without_noise(
        job,
        lambda: experts._trained(job, experts_undropped._model(job, 1, capacity_factor=room, drop_tokens=False)),
    )


@scenario("groups of experts of two ep_sizes are sorted by their names",
    works_around=("moe_group_order",), reference=False, release="0.18.9", **_one(**{**_TWO, "stage": "1"}))  # fmt: skip
def groups_of_experts_sorted(job: Job) -> None:
    layers = [experts._model(job, 1, experts._EXPERTS, ep_size=size) for size in (1, 2)]
    model = job.model(lambda self, x: self.first(x) + self.second(x), first=layers[0], second=layers[1])
    split = importlib.import_module("deepspeed.moe.utils").split_params_into_different_moe_groups_for_optimizer
    groups = split({"params": list(model.parameters()), "name": "all"})
    engine = job.engine(model, sorted(groups, key=lambda group: group["name"]))
    for step in range(3):
        job.train(engine, step)


@scenario("tensor-parallel ranks with a dispatcher that gives Tutel's buffer three dimensions",
    works_around=("moe_tutel_tensor_parallel",), release="0.18.9", **_one(**_TWO))  # fmt: skip
def buffer_of_tutel_by_hand(job: Job) -> None:
    if job.plain:
        experts_tutel.experts_of_tutel_tensor_parallel(job)
        return
    importlib.import_module("dsfix.lab.experts").provide_tutel(job._lab)
    tutel = importlib.import_module("deepspeed.moe.sharded_moe").tutel_moe

    class Dispatcher(tutel.fast_dispatcher):  # type: ignore[name-defined,misc]
        def encode(self, tokens: Any) -> Any:
            return super().encode(tokens).view(experts._EXPERTS, -1, tokens.shape[1])

    with mock.patch.object(tutel, "fast_dispatcher", Dispatcher):
        experts_tutel.experts_of_tutel_tensor_parallel(job)
