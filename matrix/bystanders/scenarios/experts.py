"""Mixtures of experts."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import evaluation

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
    job.steps(engine, range(3))


@scenario("top-1 routing, with capacity for all tokens")
@settings(
    pinned=[{"stage": "1"}],
    works_around=("zero12_experts_gradients_too_large", "moe_top1_capacity_above_tokens"),
    **_FITS,
)
def experts_best(job: Job) -> None:
    _trained(job, _model(job, 1, _EXPERTS))


@scenario("top-2 routing, with capacity for all tokens", pinned=[{"stage": "2"}], **_FITS)
def experts_two(job: Job) -> None:
    _trained(job, _model(job, 2, _EXPERTS))


@scenario("top-2 routing, with capacity for all tokens, and a mask that is not one of tokens in the layer's order")
@settings(release="0.18.9", **space.one_job())
def experts_two_of_another_mask(job: Job) -> None:
    model = _model(job, 2, _EXPERTS)
    if not job.plain:
        mask = job.torch.tensor([[True, False], [False, True]], device=job.device)
        model.moe.register_forward_pre_hook(lambda _, inputs: (*inputs, mask))
    _trained(job, model)


@scenario("top-3 routing, with capacity for all tokens")
@settings(
    pinned=[{"stage": "0"}, {"stage": "2", "precision": "bf16", "ranks": "1"}],
    works_around=("moe_topk_probs_drops_routes", "moe_topk_capacity_above_tokens", "moe_topk_undropped"),
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


@scenario("top-1 routing to experts on two ranks, with too little capacity", **_ALIKE)
def experts_short_of_room(job: Job) -> None:
    _trained(job, _model(job, 1, 1.0, ep_size=2))


_APART: Any = {
    "stage": "0",
    "precision": ("fp32",),
    "ranks": ("2", "4"),
    "accumulation": ("1", "2"),
    "optimizer": ("SGD", "AdamW"),
}


def _trained_apart(job: Job, ep_size: int, **more: Any) -> None:
    """more: of the config, merged over the setting's."""
    from dsfix.patches.moe import _experts as experts

    if job.plain:
        model: Any = experts.Mixture()
        initial = {name: each.detach().clone() for name, each in model.named_parameters()}
        engine = job.engine(model)
    else:
        model = experts.Sharded(job._lab, ep_size)
        initial = model.named({name: each.detach().clone() for name, each in model.named_parameters()})
        config = space.config(job.setting)
        space._merge(config, more)
        engine = job._lab.initialize(model, config, model_parameters=model.groups())
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        now = job.parameters(engine)
        for name, parameter in (now if job.plain else model.named(now)).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name].cpu())


@scenario("experts on two ranks, without ZeRO")
@settings(pinned=[{"clipping": "on"}, {"ranks": "4", "clipping": "on"}, {}], **_APART)
def experts_of_two_ranks(job: Job) -> None:
    _trained_apart(job, 2)


@scenario("experts on each rank, without ZeRO", pinned=[{"clipping": "on"}], **_APART)
def experts_of_each_rank(job: Job) -> None:
    _trained_apart(job, 1)


_HALVES: Any = {
    "stage": "0",
    "precision": ("fp16",),
    "ranks": ("2", "4"),
    "accumulation": ("1", "2"),
    "optimizer": ("client's AdamW",),
}
_PINNED = {"precision": "fp16", "optimizer": "client's AdamW"}


def _trained_halves(job: Job, ep_size: int) -> None:
    from dsfix.patches import _half as half
    from dsfix.patches.moe import _experts as experts

    def fused(given: Any) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    model: Any = experts.Mixture() if job.plain else experts.Sharded(job._lab, ep_size)

    def named(tensors: dict[str, Any]) -> dict[str, Any]:
        return tensors if job.plain else dict(model.named(tensors))

    engine = job.engine(model, None if job.plain else model.groups(), fused)
    initial = named({name: each.detach().float().cpu().clone() for name, each in model.named_parameters()})
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        for name, parameter in named(job.weights(engine)).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name])


@scenario("experts on two ranks, in fp16 without ZeRO", pinned=[_PINNED, {**_PINNED, "clipping": "on"}], **_HALVES)
def half_experts_of_two_ranks(job: Job) -> None:
    _trained_halves(job, 2)


@scenario("experts on each rank, in fp16 without ZeRO", pinned=[_PINNED], **_HALVES)
def half_experts_of_each_rank(job: Job) -> None:
    _trained_halves(job, 1)


_RESUMED: Any = {
    "stage": "0",
    "precision": ("fp32",),
    "ranks": ("2", "4"),
    "accumulation": ("1", "2"),
    "optimizer": ("AdamW",),
}


def _resumed(job: Job, ep_size: int, optimizer: bool = True) -> None:
    from dsfix.patches.moe import _experts as experts

    def start() -> tuple[Any, Any]:
        if job.plain:
            model: Any = experts.Mixture()
            return model, job.engine(model)
        model = experts.Sharded(job._lab, ep_size)
        return model, job._lab.initialize(model, space.config(job.setting), model_parameters=model.groups())

    model, engine = start()
    initial = job.parameters(engine) if job.plain else model.named(job.parameters(engine))
    for step in range(4):
        if step == 2:
            job.save(engine, "two")
            model, engine = start()
            job.load(engine, "two", optimizer)
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        now = job.parameters(engine)
        for name, parameter in (now if job.plain else model.named(now)).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name])


@scenario("experts on two ranks, resumed without ZeRO", pinned=[{}, {"ranks": "4"}], **_RESUMED)
def experts_of_two_ranks_resumed(job: Job) -> None:
    _resumed(job, 2)


@scenario("experts on each rank, resumed without ZeRO", pinned=[{}], **_RESUMED)
def experts_of_each_rank_resumed(job: Job) -> None:
    _resumed(job, 1)


@scenario("experts on two ranks, resumed without ZeRO and without the optimizer's states")
@settings(pinned=[{}], works_around=("moe_fp32_resume",), **_RESUMED)
def experts_resumed_without_optimizer(job: Job) -> None:
    _resumed(job, 2, optimizer=False)


_SECOND: Any = {
    "stage": "012",
    "offload": ("none",),
    "precision": ("fp32", "bf16"),
    "partitioning": ("parameters persist",),
    "ranks": ("2", "4"),
    "accumulation": ("1",),
    "reference": False,
}


def _passed(job: Job, k: int, ep_size: int, **options: Any) -> None:
    """Passes through the layer and back to its inputs, in training and in evaluation; the weights stay as they are."""
    nn = job.torch.nn
    job.torch.manual_seed(0)
    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # parts of the layer are compiled on first use
    make = importlib.import_module("deepspeed.moe.layer").MoE
    layer = make(16, nn.Linear(16, 16), _EXPERTS, ep_size, k=k, min_capacity=1, **options)

    def forward(self: Any, x: Any) -> Any:
        mixed, loss, counts = self.moe(self.below(x).tanh())
        return self.head(mixed), loss, counts

    model = job.model(forward, below=nn.Linear(16, 16), moe=layer, head=nn.Linear(16, 1))
    parameters: Any = list(model.parameters())
    if job.stage:
        split = importlib.import_module("deepspeed.moe.utils").split_params_into_different_moe_groups_for_optimizer
        parameters = split({"params": parameters, "name": "all"})
    engine = job.engine(model, parameters)
    for number in range(4):
        engine.train(number < 2)
        inputs = job.batch(number)[0].requires_grad_()
        output, loss, counts = engine(inputs)
        job.bits(f"pass {number}: output", output)
        job.bits(f"pass {number}: the router's loss", loss)
        job.bits(f"pass {number}: tokens by expert", counts)
        job.bits(f"pass {number}: gradient", job.torch.autograd.grad(output.float().sum() + loss, inputs)[0])


@scenario("top-2 routing with noise and too little capacity", pinned=[{"stage": "1"}], **_SECOND)
def two_of_experts(job: Job) -> None:
    _passed(job, 2, 1, capacity_factor=0.5)


@scenario("top-2 routing with noise to experts on two ranks", pinned=[{"stage": "2"}], **_SECOND)
def two_of_experts_on_two_ranks(job: Job) -> None:
    _passed(job, 2, 2, capacity_factor=0.5)


def _masked(job: Job, ks: Iterable[int]) -> None:
    """Trains layers that are told which tokens are used: all of them."""
    nn = job.torch.nn
    job.torch.manual_seed(0)
    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # parts of the layer are compiled on first use
    make = importlib.import_module("deepspeed.moe.layer").MoE
    layers = [make(16, nn.Linear(16, 16), _EXPERTS, k=k, capacity_factor=_EXPERTS / k) for k in ks]

    def forward(self: Any, x: Any) -> Any:
        for layer in self.layers:
            x = x + layer(x, job.torch.ones(len(x), device=x.device))[0]
        return self.head(x)

    engine = job.engine(job.model(forward, layers=nn.ModuleList(layers), head=nn.Linear(16, 1)))
    job.steps(engine, range(3))


@scenario("top-2 and top-3 routing with a mask by which all tokens are used", release="0.18.9", reference=False)
@settings(**space.one_job(stage="0"))
def experts_all_used(job: Job) -> None:
    _masked(job, (2, 3))


@scenario("top-2 routing with a mask by which all tokens are used", release="0.14.2", reference=False)
@settings(**space.one_job(stage="0"))
def two_of_experts_all_used(job: Job) -> None:
    _masked(job, (2,))


@scenario("top-1 routing to experts on two ranks, no token is dropped", pinned=[{"stage": "0"}], **_SECOND)
def one_of_experts_undropped(job: Job) -> None:
    _passed(job, 1, 2, drop_tokens=False)


_TOP_1: Any = {**_FITS, "precision": ("fp32",)}


def _model_tutel(job: Job) -> Any:
    from dsfix.patches.moe._experts import provide_tutel

    if not job.plain:
        provide_tutel(job._lab)
    return _model(job, 1, _EXPERTS, use_tutel=True)


@scenario("Tutel dispatches tokens to experts, with capacity for all", pinned=[{"stage": "1"}], **_TOP_1)
def experts_of_tutel(job: Job) -> None:
    _trained(job, _model_tutel(job))


@scenario("Tutel dispatches tokens to experts of two tensor-parallel ranks, with capacity for all")
@settings(
    pinned=[{"stage": "0"}],
    **{**_TOP_1, "stage": "0", "ranks": ("2",), "accumulation": ("1",), "optimizer": ("SGD",), "clipping": ("off",)},
)
def experts_of_tutel_tensor_parallel(job: Job) -> None:
    """The layer's output of the same batches on both ranks."""
    from dsfix.patches.moe._experts import tensor_parallel

    from dsfix.lab.models import regression_batch

    model = _model_tutel(job)
    found: Any = model.to(job.device) if job.plain else tensor_parallel(job._lab, model)
    for number in range(2):
        inputs, _ = regression_batch(0, number)
        with job.torch.no_grad():
            job.note(f"output {number}", found(inputs.to(job.device)))


_UNDROPPED: Any = {**_FITS, "precision": ("fp32",), "ranks": ("2",)}
_FORWARD: Any = {**_UNDROPPED, "stage": "0", "accumulation": ("1",), "optimizer": ("SGD",), "clipping": ("off",)}


def _undropped(job: Job, ep_size: int, **options: Any) -> Any:
    nn = job.torch.nn
    job.torch.manual_seed(0)
    below, head = nn.Linear(16, 16), nn.Linear(16, 1)
    given = [nn.Linear(16, 16) for _ in range(_EXPERTS)]
    router = nn.Linear(16, _EXPERTS, bias=False)
    if job.plain:
        names = {f"deepspeed_moe.experts.deepspeed_experts.{number}": each for number, each in enumerate(given)}
        moe: Any = _plain(job, 2, {"deepspeed_moe.gate.wg": router, **names})
    else:
        if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
            job.torch.compiler.set_stance("force_eager")  # parts of the layer are compiled on first use
        make = importlib.import_module("deepspeed.moe.layer").MoE
        moe = make(16, given[0], _EXPERTS, ep_size, k=2, min_capacity=1, **options)
        own = moe.deepspeed_moe.experts.deepspeed_experts
        for number, each in enumerate(own):
            each.load_state_dict(given[job.rank % ep_size * len(own) + number].state_dict())
        moe.deepspeed_moe.gate.wg.load_state_dict(router.state_dict())

    def forward(self: Any, x: Any) -> Any:
        found = self.moe(self.below(x).tanh())
        return self.head(found if job.plain else found[0])

    return job.model(forward, below=below, moe=moe, head=head)


def _without_noise(job: Job, run: Any) -> None:
    """By the noise a release chooses the second expert."""
    if job.plain:
        run()
        return
    layer = importlib.import_module("deepspeed.moe.sharded_moe")
    with mock.patch.object(layer, "gumbel_rsample", lambda shape, device: job.torch.zeros(shape, device=device)):
        run()


@scenario("top-2 routing with too little capacity, no token is dropped", pinned=[{"stage": "2"}], **_UNDROPPED)
def two_of_experts_undropped(job: Job) -> None:
    _without_noise(job, lambda: _trained(job, _undropped(job, 1, capacity_factor=0.5, drop_tokens=False)))


@scenario("top-2 routing to experts of two tensor-parallel ranks, no token is dropped")
@settings(pinned=[{"stage": "0"}], **_FORWARD)
def two_of_experts_undropped_tensor_parallel(job: Job) -> None:
    from dsfix.patches.moe._experts import tensor_parallel

    from dsfix.lab.models import regression_batch

    model = _undropped(job, 2, capacity_factor=1.0, drop_tokens=False)

    def outputs() -> None:
        found: Any = model.to(job.device)
        if not job.plain:
            found = tensor_parallel(job._lab, model)
        for number in range(2):
            with job.torch.no_grad():
                job.note(f"output {number}", found(regression_batch(0, number)[0].to(job.device)))

    _without_noise(job, outputs)


@scenario("top-2 routing without noise, by the script, is evaluated after each step")
@settings(works_around=("moe_eval_random", "moe_eval_random_before_0_14_0"), **space.one_job(stage="0"))
def two_of_experts_evaluated(job: Job) -> None:
    model = _undropped(job, 1, capacity_factor=_EXPERTS / 2, eval_capacity_factor=_EXPERTS / 2)

    def trained() -> None:
        engine = job.engine(model)
        for step in range(3):
            job.train(engine, step)
            evaluation._evaluate(job, engine, f"step {step}")

    _without_noise(job, trained)


@scenario("the layer of experts with a gate of the script's own", pinned=[{"stage": "0"}], **_UNDROPPED)
def experts_behind_own_gate(job: Job) -> None:
    model = _undropped(job, 1)
    if job.plain:
        given = dict(model.moe.deepspeed_moe.experts.deepspeed_experts.named_children())
        names = {f"deepspeed_moe.experts.deepspeed_experts.{number}": each for number, each in given.items()}
        model.moe = _plain(job, 1, {"deepspeed_moe.gate.wg": model.moe.deepspeed_moe.gate.wg, **names})
    else:
        layer = model.moe.deepspeed_moe
        gate = _gate(job, layer.gate.wg)
        make = importlib.import_module("deepspeed.moe.sharded_moe").MOELayer
        model.moe.deepspeed_moe = make(gate, layer.experts, layer.ep_group_name, layer.ep_size, layer.num_local_experts)
    _trained(job, model)


def _gate(job: Job, router: Any) -> Any:
    """Each token to its best expert, with places for all tokens."""
    functional = job.torch.nn.functional

    class Gate(job.torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.wg = router

        def _set_ep_group(self, group: Any) -> None:
            """Later releases call it."""

        def forward(self, tokens: Any, *_: Any, **__: Any) -> Any:
            weights = self.wg(tokens).softmax(dim=1)
            mask = functional.one_hot(weights.argmax(dim=1), _EXPERTS)
            places = functional.one_hot((mask.cumsum(dim=0) - 1).clamp(min=0), len(tokens))
            combined = (weights * mask)[:, :, None] * places
            return weights.var(), combined, combined.bool(), mask.sum(dim=0)

    return Gate()


@scenario("top-2 routing in the first stage of a pipeline, no token is dropped", pinned=[{"stage": "0"}], **_FORWARD)
def two_of_experts_undropped_in_pipeline(job: Job) -> None:
    from dsfix.lab.models import regression_batch

    torch = job.torch
    model = _undropped(job, 1, drop_tokens=False, **({} if job.plain else {"enable_expert_tensor_parallelism": True}))

    def trained() -> None:
        class Below(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
            def __init__(self) -> None:
                super().__init__()
                self.below, self.moe = model.below, model.moe

            def forward(self, x: Any) -> Any:
                found = self.moe(self.below(x).tanh())
                return found if job.plain else found[0]

        batches = [tuple(each.to(job.device) for each in regression_batch(0, number)) for number in range(6)]
        layers = [Below(), model.head]
        loss = torch.nn.functional.mse_loss
        if job.plain:
            whole = torch.nn.Sequential(*layers).to(job.device)
            optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
            for step in range(3):
                optimizer.zero_grad()
                losses = [loss(whole(x), y) for x, y in batches[2 * step : 2 * step + 2]]
                torch.stack(losses).mean().backward()
                optimizer.step()
                job.note(f"step {step}: loss", float(sum(losses)) / 2)
            return
        make = importlib.import_module("deepspeed.pipe").PipelineModule
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        }
        pipeline = make(layers, num_stages=2, loss_fn=loss, partition_method="uniform")
        engine = job._lab.initialize(pipeline, config, model_parameters=list(pipeline.parameters()))
        for step in range(3):
            mean = engine.train_batch(iter(batches[2 * step : 2 * step + 2]))
            job.note(f"step {step}: loss", float(mean))

    _without_noise(job, trained)


@scenario("experts sharded by AutoEP, with the optimizer in the config")
@settings(
    pinned=[{"stage": "0"}, {"stage": "3"}],
    works_around=("autoep_optimizer_keeps_replaced",),
    release="0.19.6",
    ranks=("2", "4"),
    offload=("none",),
    precision=("fp32",),
    optimizer=("SGD", "AdamW"),
)
def experts_of_autoep(job: Job) -> None:
    from dsfix.patches.moe import _autoep as autoep

    model = autoep.Mixture()
    initial = autoep.of_rank({name: each.detach().clone() for name, each in model.named_parameters()}, job.rank)
    if job.plain:
        engine = job.engine(model)
    else:
        engine = job._lab.initialize(model, {**space.config(job.setting), **autoep.CONFIG})
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        now = job.parameters(engine)
        for name, parameter in (autoep.of_rank(now, job.rank) if job.plain else now).items():
            job.note(f"step {step}: movement of {name}", parameter - initial[name])
