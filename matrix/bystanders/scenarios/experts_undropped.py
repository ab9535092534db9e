"""DeepSpeed's MoE layer with two experts per token, none of which is dropped; and with a gate of the script's own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import experts

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FITS: Any = {**experts._FITS, "precision": ("fp32",), "ranks": ("2",)}
_FORWARD: Any = {**_FITS, "stage": "0", "accumulation": ("1",), "optimizer": ("SGD",), "clipping": ("off",)}


def _model(job: Job, ep_size: int, **options: Any) -> Any:
    nn = job.torch.nn
    job.torch.manual_seed(0)
    below, head = nn.Linear(16, 16), nn.Linear(16, 1)
    given = [nn.Linear(16, 16) for _ in range(experts._EXPERTS)]
    router = nn.Linear(16, experts._EXPERTS, bias=False)
    if job.plain:
        names = {f"deepspeed_moe.experts.deepspeed_experts.{number}": each for number, each in enumerate(given)}
        moe: Any = experts._plain(job, 2, {"deepspeed_moe.gate.wg": router, **names})
    else:
        if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
            job.torch.compiler.set_stance("force_eager")  # parts of the layer are compiled on first use
        make = importlib.import_module("deepspeed.moe.layer").MoE
        moe = make(16, given[0], experts._EXPERTS, ep_size, k=2, min_capacity=1, **options)
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


@scenario("top-2 routing with too little capacity, no token is dropped", pinned=[{"stage": "2"}], **_FITS)
def two_of_experts_undropped(job: Job) -> None:
    _without_noise(job, lambda: experts._trained(job, _model(job, 1, capacity_factor=0.5, drop_tokens=False)))


@scenario(
    "top-2 routing to experts of two tensor-parallel ranks, no token is dropped", pinned=[{"stage": "0"}], **_FORWARD
)
def two_of_experts_undropped_tensor_parallel(job: Job) -> None:
    from dsfix.lab.experts import tensor_parallel
    from dsfix.lab.models import regression_batch

    model = _model(job, 2, capacity_factor=1.0, drop_tokens=False)

    def outputs() -> None:
        found: Any = model.to(job.device)
        if not job.plain:
            found = tensor_parallel(job._lab, model)
        for number in range(2):
            with job.torch.no_grad():
                job.note(f"output {number}", found(regression_batch(0, number)[0].to(job.device)))

    _without_noise(job, outputs)


@scenario("the layer of experts with a gate of the script's own", pinned=[{"stage": "0"}], **_FITS)
def experts_behind_own_gate(job: Job) -> None:
    model = _model(job, 1)
    if job.plain:
        given = dict(model.moe.deepspeed_moe.experts.deepspeed_experts.named_children())
        names = {f"deepspeed_moe.experts.deepspeed_experts.{number}": each for number, each in given.items()}
        model.moe = experts._plain(job, 1, {"deepspeed_moe.gate.wg": model.moe.deepspeed_moe.gate.wg, **names})
    else:
        layer = model.moe.deepspeed_moe
        gate = _gate(job, layer.gate.wg)
        make = importlib.import_module("deepspeed.moe.sharded_moe").MOELayer
        model.moe.deepspeed_moe = make(gate, layer.experts, layer.ep_group_name, layer.ep_size, layer.num_local_experts)
    experts._trained(job, model)


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
            mask = functional.one_hot(weights.argmax(dim=1), experts._EXPERTS)
            places = functional.one_hot((mask.cumsum(dim=0) - 1).clamp(min=0), len(tokens))
            combined = (weights * mask)[:, :, None] * places
            return weights.var(), combined, combined.bool(), mask.sum(dim=0)

    return Gate()


@scenario("top-2 routing in the first stage of a pipeline, no token is dropped", pinned=[{"stage": "0"}], **_FORWARD)
def two_of_experts_undropped_in_pipeline(job: Job) -> None:
    from dsfix.lab.models import regression_batch

    torch = job.torch
    model = _model(job, 1, drop_tokens=False, **({} if job.plain else {"enable_expert_tensor_parallelism": True}))

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
