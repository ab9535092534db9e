"""Models divided among ranks, experts, pipelines and sequences, in scripts that work around a bug."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import experts, forward_passes, pipelines, sequences
from matrix.bystanders.scenarios.around_zero3 import _one
from matrix.bystanders.space import one_job

_TWO: Any = {"stage": "0", "partitioning": "parameters persist", "ranks": "2"}


def _passed(job: Job, found: Any) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    job.note("output", autotp.outputs(found)["output"])


def _sharded(job: Job, kind: Any, layer: str) -> None:
    """With the order of another layer's fused weight."""
    from dsfix.patches.tensor_parallel import _autotp as autotp

    whole = autotp.causal(kind)
    if job.plain:
        _passed(job, whole)
        return
    assert job._lab.deepspeed
    module = importlib.import_module("deepspeed.module_inject.auto_tp")
    prepare = module.prepare_tp_fused_qkvw
    with mock.patch.object(module, "prepare_tp_fused_qkvw", lambda _, *rest: prepare(layer, *rest)):
        _passed(job, autotp.shard(job._lab, whole))


@scenario("sharded inference of Falcon, whose fused weight is divided as BLOOM's on the script's word")
@settings(works_around=("autotp_falcon_fused_weight",), release="0.13.1", **_one(**_TWO))
def sharded_falcon_as_bloom(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    _sharded(job, autotp.FALCON, "BloomBlock")


@scenario("sharded inference of MPT, whose layer the script gives by its name alone")
@settings(works_around=("autotp_fused_weight_unrecognized",), release="0.13.4", **_one(**_TWO))
def sharded_mpt_by_one_name(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    _sharded(job, autotp.MPT, "MptBlock")


@scenario("sharded inference of an MLP whose width is not a multiple of 64, with tp_grain_size 1")
@settings(works_around=("autotp_width_remainder",), release="0.18.9", **_one(**_TWO))
def sharded_uneven_by_ones(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    whole = autotp.causal(autotp.UNEVEN)
    _passed(job, whole if job.plain else autotp.shard(job._lab, whole, tp_grain_size=1))


@scenario("sharded inference of an MLP that the script pads with zeros to a multiple of 64")
@settings(works_around=("autotp_width_remainder_before_0_16_2",), release="0.16.0", **_one(**_TWO))
def sharded_uneven_padded(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    whole = autotp.causal(autotp.UNEVEN)
    mlp, more = whole.transformer.h[0].mlp, -autotp.UNEVEN.wide % 64
    pad, parameter = job.torch.nn.functional.pad, job.torch.nn.Parameter
    mlp.up_proj.weight = parameter(pad(mlp.up_proj.weight.detach(), (0, 0, 0, more)))
    mlp.down_proj.weight = parameter(pad(mlp.down_proj.weight.detach(), (0, more)))
    _passed(job, whole if job.plain else autotp.shard(job._lab, whole))


@scenario("sharded inference of MPT, whose numbers of heads and widths the script divides or sets")
@settings(works_around=("autotp_mpt_kv_heads",), release="0.12.2", **_one(**_TWO))
def sharded_mpt_by_hand(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    for before in (True, False):
        model: Any = autotp.noting_mpt()
        attention = model.transformer.h[0].attn
        kv_n_heads, d_model = attention.kv_n_heads // 2, attention.d_model // 2
        if not job.plain:
            if before:
                attention.kv_n_heads, attention.d_model = kv_n_heads, d_model
            model = autotp.shard(job._lab, model)
            attention.kv_n_heads, attention.d_model = kv_n_heads, d_model
        _passed(job, model)


def _trained(job: Job, engine: Any) -> None:
    for step in range(3):
        pipelines._step(job, engine, step)


@scenario("a pipeline's gradients are divided on the last stage only, by an attribute or a hook of the script's")
@settings(works_around=("pipeline_accumulation_scaled_per_stage",), release="0.18.9", **_one(**_TWO, accumulation="2"))
def divided_on_last_stage(job: Job) -> None:
    for name, value in (("_scale_wrt_gas", False), ("_backward_prologue_per_tensor", lambda gradient: gradient)):
        engine = pipelines._pipeline(job, {}, 2)
        if not job.plain and not engine.is_last_stage():
            setattr(engine, name, value)
        _trained(job, engine)


@scenario("a pipeline's loss is divided by the script, which says so to the engine")
@settings(works_around=("pipeline_accumulation_unscaled",), release="0.17.6", **_one(**_TWO, accumulation="2"))
def divided_in_loss_of_pipeline(job: Job) -> None:
    engine = pipelines._pipeline(job, {}, 2)
    if not job.plain:
        loss = engine.module.loss_fn
        engine.module.loss_fn = lambda *given: loss(*given) / job.accumulation
        engine.scale_wrt_gas = False
    _trained(job, engine)


@scenario("a pipeline accumulates in bf16, and the script gives the fp32 weights their gradients")
@settings(
    works_around=("pipeline_bf16_accumulation_no_update",),
    release="0.14.2",
    **_one(**_TWO, accumulation="2", precision="bf16"),
)
def gradients_given_by_hand(job: Job) -> None:
    engine = pipelines._pipeline(job, {"data_types": {"grad_accum_dtype": "bf16"}}, 2)
    if not job.plain:
        outer = engine.optimizer
        step = outer.optimizer.step

        def give_and_step() -> None:
            for weights, gradients in zip(outer.fp32_groups_flat_partition, outer.fp32_groups_gradient_flat_partition):
                weights.grad = gradients.to(weights.dtype)
            step()

        outer.optimizer.step = give_and_step
    _trained(job, engine)


_LIMIT = 0.2


def _trained_experts(
    job: Job,
    change: Callable[[Any], None] = lambda engine: None,
    clip: bool = False,
    optimizer: Any = None,
    **config: Any,
) -> None:
    """Two ranks share the experts. clip: the script clips the gradients."""
    from dsfix.patches.moe import _experts as experts

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


@scenario("gradients of experts on two ranks are clipped by the script, in fp32 without ZeRO")
@settings(works_around=("experts_clipped_by_averaged_norms",), release="0.18.9", **_one(**_TWO))
def experts_clipped_by_hand(job: Job) -> None:
    _trained_experts(job, clip=True)


@scenario("gradients of experts on two ranks are clipped by the script, in fp16 without ZeRO")
@settings(
    works_around=("fp16_experts_norm_of_weights",),
    release="0.18.9",
    **_one(**_TWO, precision="fp16", optimizer="client's AdamW"),
)
def half_experts_clipped_by_hand(job: Job) -> None:
    from dsfix.patches import _half as half

    def fused(given: Any) -> Any:
        if job.plain:
            return job.torch.optim.AdamW(given, **space.ADAM)
        half.provide_fused_adam(job._lab)
        return importlib.import_module("deepspeed.ops.adam").FusedAdam(given, **space.ADAM)

    _trained_experts(job, clip=True, optimizer=fused, fp16={"loss_scale": 1.0})


@scenario("gradients of experts on two ranks are reduced by the script, without ZeRO")
@settings(works_around=("experts_gradients_too_large_without_zero",), release="0.13.1", **_one(**_TWO))
def experts_reduced_by_hand(job: Job) -> None:
    def reduce(gradients: dict[str, Any], _: int) -> None:
        comm, groups = (importlib.import_module(f"deepspeed.{name}") for name in ("comm", "utils.groups"))
        for name, tensors in gradients.items():
            for each in tensors:
                each.div_(job.world_size)
                comm.all_reduce(each, group=groups._get_expert_data_parallel_group(name))

    _trained_experts(job, lambda engine: setattr(engine, "_reduce_expert_gradients", reduce))


@scenario("top-2 routing, no token is dropped, with a capacity factor that has room for all tokens")
@settings(works_around=("moe_top2_drops_tokens",), release="0.13.1", **_one(**_TWO))
def two_of_experts_with_room(job: Job) -> None:
    room = experts._EXPERTS / 2
    experts._without_noise(
        job, lambda: experts._trained(job, experts._undropped(job, 1, capacity_factor=room, drop_tokens=False))
    )


@scenario("groups of experts of two ep_sizes are sorted by their names")
@settings(works_around=("moe_group_order",), reference=False, release="0.18.9", **_one(**{**_TWO, "stage": "1"}))
def groups_of_experts_sorted(job: Job) -> None:
    layers = [experts._model(job, 1, experts._EXPERTS, ep_size=size) for size in (1, 2)]
    model = job.model(lambda self, x: self.first(x) + self.second(x), first=layers[0], second=layers[1])
    split = importlib.import_module("deepspeed.moe.utils").split_params_into_different_moe_groups_for_optimizer
    groups = split({"params": list(model.parameters()), "name": "all"})
    engine = job.engine(model, sorted(groups, key=lambda group: group["name"]))
    job.steps(engine, range(3))


@scenario("tensor-parallel ranks with a dispatcher that gives Tutel's buffer three dimensions")
@settings(works_around=("moe_tutel_tensor_parallel",), release="0.18.9", **_one(**_TWO))
def buffer_of_tutel_by_hand(job: Job) -> None:
    from dsfix.patches.moe._experts import provide_tutel

    if job.plain:
        experts.experts_of_tutel_tensor_parallel(job)
        return
    provide_tutel(job._lab)
    tutel = importlib.import_module("deepspeed.moe.sharded_moe").tutel_moe

    class Dispatcher(tutel.fast_dispatcher):  # type: ignore[name-defined,misc]
        def encode(self, tokens: Any) -> Any:
            return super().encode(tokens).view(experts._EXPERTS, -1, tokens.shape[1])

    with mock.patch.object(tutel, "fast_dispatcher", Dispatcher):
        experts.experts_of_tutel_tensor_parallel(job)


_ENGINE = "deepspeed.runtime.pipe.engine"


@scenario("the first stage makes a float mask require a gradient, which the last stage does not need")
@settings(works_around=("pipeline_float_without_gradient",), release="0.18.9", **one_job())
def mask_made_to_require_gradient(job: Job) -> None:
    def step(self: Any, given: Any) -> Any:
        x, mask = given
        mask = mask if mask.requires_grad else mask.clone().requires_grad_()
        return self.body(x).tanh() + self.other(x) * mask.detach(), mask

    last = lambda self, given: self.head(given[0]) + 0 * given[1].sum()  # noqa: E731
    start = forward_passes._PASSED["float mask"][2]
    with mock.patch.dict(forward_passes._PASSED, {"required": (step, last, start)}):
        forward_passes._trained(job, "required")


@scenario("stages pass tensors of two dtypes, and the script replaces the function that reuses buffers")
@settings(works_around=("pipeline_receive_buffer_dtype",), release="0.18.9", **one_job(ranks="4"))
def buffers_of_each_dtype(job: Job) -> None:
    if job.plain:
        forward_passes._trained(job, "float, indices, float")
        return
    engine = importlib.import_module(_ENGINE).PipelineEngine

    def allocate(self: Any, idx: int, shape: Any, dtype: Any) -> Any:
        buffers = self.__dict__.setdefault("buffers_by_dtype", {})
        size = job.torch.Size(shape).numel()
        if idx not in buffers or buffers[idx].dtype != dtype or buffers[idx].numel() < size:
            buffers[idx] = self._allocate_buffer(shape, dtype=dtype, num_buffers=1)[0]
        return buffers[idx].flatten()[:size].view(shape)

    with mock.patch.object(engine, "_allocate_or_extend_buffers", allocate):
        forward_passes._trained(job, "float, indices, float")


@scenario("stages pass tensors of two dtypes, and the script drops a buffer of the wrong one")
@settings(works_around=("pipeline_receive_buffer_dtype",), release="0.18.9", **one_job(ranks="4"))
def buffers_dropped(job: Job) -> None:
    if job.plain:
        forward_passes._trained(job, "float, indices, float")
        return
    engine = importlib.import_module(_ENGINE).PipelineEngine
    former = engine._allocate_or_extend_buffers

    def allocate(self: Any, idx: int, shape: Any, dtype: Any) -> Any:
        if idx < len(self._grad_layer_buf) and self._grad_layer_buf[idx].dtype != dtype:
            self._grad_layer_buf[idx] = job.torch.empty(0, dtype=dtype, device=job.device)
        return former(self, idx, shape, dtype)

    with mock.patch.object(engine, "_allocate_or_extend_buffers", allocate):
        forward_passes._trained(job, "float, indices, float")


@scenario("the loss function of a pipeline in bf16 returns fp32, and all ranks note the loss")
@settings(works_around=("pipeline_half_loss_broadcast",), release="0.12.2", **one_job(precision="bf16"))
def loss_in_fp32(job: Job) -> None:
    engine = pipelines._pipeline(job, {}, 2)
    for step in range(3):
        batch = pipelines._batch(job, step)
        if job.plain:
            value = job.loss(engine, batch)
            engine.backward(value)
            engine.step()
        else:
            value = engine.train_batch(data_iter=iter([batch]))
        job.note(f"step {step}: loss", value.reshape(-1))


@scenario("a pipeline's number of micro-batches is set for each evaluation")
@settings(works_around=("pipeline_eval_micro_batches",), release="0.14.2", **one_job(accumulation="2"))
def micro_batches_set(job: Job) -> None:
    engine = pipelines._pipeline(job, {}, 2)
    for step, number in enumerate((2, 3, 1)):
        pipelines._step(job, engine, step)
        source = iter([pipelines._batch(job, 100 + each) for each in range(4)])
        if job.plain:
            with job.torch.no_grad():
                value: Any = sum(job.loss(engine, next(source)) for _ in range(number)) / number
        else:
            trained, engine.micro_batches = engine.micro_batches, number
            value = engine.eval_batch(source, num_micro_batches=number)
            engine.micro_batches = trained
        job.note(f"evaluation {step}", value.reshape(-1))
        job.note(f"batches left {step}", str(len(list(source))))


@scenario("a DualPipeV pipeline's number of micro-batches is set for each evaluation")
@settings(works_around=("dualpipev_eval_micro_batches",), release="0.19.8", **one_job())
def dualpipev_micro_batches_set(job: Job) -> None:
    model = job.MLP(depth=3)
    layers, trained = [*model.blocks, model.head], 4
    if job.plain:
        module = job.torch.nn.Sequential(*layers)
    else:
        module = importlib.import_module("deepspeed.pipe").DualPipeVModule(
            layers=layers, num_stages=2, loss_fn=job.torch.nn.functional.mse_loss, partition_method="uniform"
        )
    engine = job.engine(module, gradient_accumulation_steps=trained)
    for step, number in enumerate((4, 6, 5)):
        batches = [pipelines._batch(job, trained * step + each) for each in range(trained)]
        evaluated = [pipelines._batch(job, 100 + each) for each in range(number)]
        if job.plain:
            for batch in batches:
                engine.backward(job.loss(engine, batch))
                engine.step()
            with job.torch.no_grad():
                value: Any = sum(job.loss(engine, batch) for batch in evaluated) / number
        else:
            engine.train_batch(iter(batches))
            engine.micro_batches = number
            value = engine.eval_batch(iter(evaluated), num_micro_batches=number)
            engine.micro_batches = trained
        job.note(f"evaluation {step}", value.reshape(-1))


@scenario("a pipeline's module is called before it has an engine: as prepared by the script, and layer by layer")
@settings(works_around=("pipeline_module_runs_no_layer",), release="0.18.9", **one_job(ranks="1"))
def module_prepared(job: Job) -> None:
    model = job.MLP(depth=3)
    layers = [*model.blocks, model.head]
    inputs = job.torch.randn(4, 16, generator=job.torch.Generator().manual_seed(0)).to(job.device)
    if job.plain:
        module = job.torch.nn.Sequential(*layers).to(job.device)
        for label in ("whole", "by layer", "without checkpoints"):
            job.note(label, module(inputs))
        engine = job.engine(module)
    else:
        mse = job.torch.nn.functional.mse_loss
        module = importlib.import_module("deepspeed.pipe").PipelineModule(
            layers=layers, num_stages=1, loss_fn=mse, partition_method="uniform", activation_checkpoint_interval=2
        )
        module._precompute_checkpointable_values()
        outputs = module(inputs)
        job.note("whole", outputs[0] if isinstance(outputs, tuple) else outputs)
        outputs = inputs
        for layer in module.forward_funcs:
            outputs = layer(outputs)
        job.note("by layer", outputs)
        module.activation_checkpoint_interval = 0
        job.note("without checkpoints", module(inputs))
        module.activation_checkpoint_interval = 2
        engine = job.engine(module, pipeline={"activation_checkpoint_interval": 2})
    for step in range(3):
        pipelines._step(job, engine, step)


@scenario("the script tells the engine that the backward pass of each stage is its own")
@settings(works_around=("pipeline_stage0_backward",), release="0.18.3", **one_job())
def backward_of_the_engine(job: Job) -> None:
    if job.plain:
        pipelines._trained(job)
        return
    engine = importlib.import_module(_ENGINE).PipelineEngine
    instruction = importlib.import_module("deepspeed.runtime.pipe.schedule").BackwardPass
    former = engine._INSTRUCTION_MAP[instruction]

    def backward(self: Any, buffer_id: int) -> None:
        self._running_engine_backward = True
        try:
            former(self, buffer_id)
        finally:
            self._running_engine_backward = False

    with mock.patch.dict(engine._INSTRUCTION_MAP, {instruction: backward}):
        pipelines._trained(job)


@scenario("two keys of tied layers have hashes that are the same on all ranks, as with a PYTHONHASHSEED")
@settings(works_around=("pipeline_tied_keys_order",), release="0.16.0", **one_job())
def tied_by_keys_in_order(job: Job) -> None:
    torch = job.torch

    class Key(str):
        """In a set, "a" comes before "b"."""

        def __hash__(self) -> int:
            return ord(self[0])

    class Shared(torch.nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, seed: int) -> None:
            super().__init__(16, 16, bias=False)
            with torch.no_grad():
                self.weight.copy_(torch.randn(16, 16, generator=torch.Generator().manual_seed(seed)) / 4)

    model = job.MLP(depth=1)
    block, head = model.blocks[0], model.head
    if job.plain:
        first, second = Shared(0), Shared(1)
        engine = job.engine(torch.nn.Sequential(first, second, block, second, first, head))
    else:
        pipe = importlib.import_module("deepspeed.pipe")
        first, second = (pipe.TiedLayerSpec(Key(key), Shared, seed) for seed, key in enumerate("ba"))
        loss = lambda outputs, targets: torch.nn.functional.mse_loss(outputs.float(), targets)  # noqa: E731
        layers = [first, second, block, second, first, head]
        module = pipe.PipelineModule(layers=layers, num_stages=2, loss_fn=loss, partition_method="uniform")
        engine = job.engine(module, steps_per_print=10)
    for step in range(3):
        batch = pipelines._batch(job, step)
        if job.plain:
            engine.backward(job.loss(engine, batch))
            engine.step()
        else:
            engine.train_batch(data_iter=iter([batch]))
        for name, parameter in job.parameters(engine).items():
            job.note(f"step {step}: {name.replace('tied_modules.b', '0').replace('tied_modules.a', '1')}", parameter)


_LAYER = "deepspeed.sequence.layer"
_TILED = "deepspeed.runtime.sequence_parallel.ulysses_sp"


@scenario("the two samples of a batch are one sequence for TiledMLP")
@settings(works_around=("tiled_mlp_batch",), release="0.17.2", **one_job())
def samples_in_one_sequence(job: Job) -> None:
    nn = job.torch.nn
    tiled: Any = None if job.plain else importlib.import_module(_TILED).TiledMLP
    part: Any = lambda self, x: self.down(self.up(x).tanh())  # noqa: E731

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x.view(2, 2, 16))
        if tiled:
            flat = x.reshape(1, 4, 16)
            x = x + tiled.apply(part, self.mlp, flat, 2, list(self.mlp.parameters())).reshape(x.shape)
        else:
            x = x + part(self.mlp, x)
        return self.head(x).view(4, 1)

    mlp = job.model(part, up=nn.Linear(16, 24), down=nn.Linear(24, 16))
    sequences._steps(job, job.model(forward, below=nn.Linear(16, 16), mlp=mlp, head=nn.Linear(16, 1)))


@scenario("TiledMLP is told the number of tiles that four tokens make, not the three that were asked for")
@settings(works_around=("zero_tiled_mlp_fewer_tiles",), release="0.18.9", **one_job(stage="2"))
def tiles_counted(job: Job) -> None:
    nn = job.torch.nn
    part: Any = lambda self, x: self.down(self.up(x).tanh())  # noqa: E731

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x)[None]
        if job.plain:
            return self.head(part(self.mlp, x))[0]
        tiled, tiles = importlib.import_module(_TILED).TiledMLP, len(x.chunk(3, 1))
        return self.head(tiled.apply(part, self.mlp, x, tiles, list(self.mlp.parameters())))[0]

    mlp = job.model(part, up=nn.Linear(16, 24), down=nn.Linear(24, 16))
    sequences._steps(job, job.model(forward, below=nn.Linear(16, 16), mlp=mlp, head=nn.Linear(16, 1)))


@scenario("evaluations compute the loss whole, or discard what TiledFusedLogitsLoss has added to the gradients")
@settings(works_around=("tiled_logits_evaluation",), release="0.17.4", **one_job())
def evaluated_without_tiles(job: Job) -> None:
    nn = job.torch.nn
    fused: Any = sequences._fused(job)
    whole: Any = lambda self, x, y: nn.functional.mse_loss(self.head(x), y)  # noqa: E731

    def forward(self: Any, inputs: Any, targets: Any, tiles: bool) -> Any:
        x, y = self.below(inputs).unsqueeze(0), targets.unsqueeze(0)
        if fused and tiles:
            return fused.apply(whole, self, x, y, None, 2, list(self.head.parameters()), "mean")
        return whole(self, x, y)

    engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 1)))
    for step in range(4):
        job.train(engine, step, lambda batch: engine(*batch, True))
        engine.eval()
        with job.torch.no_grad():
            for tiles in (False, True):
                job.note(f"step {step}: evaluated, tiles {tiles}", engine(*job.batch(100 + step), tiles))
        engine.zero_grad()
        engine.train()


@scenario("the loss of a tile is divided by the accumulation, so that TiledFusedLogitsLoss has the whole factor")
@settings(works_around=("tiled_logits_unscaled",), release="0.18.9", **one_job(stage="2", accumulation="2"))
def factor_inside_tiles(job: Job) -> None:
    nn, micro = job.torch.nn, job.accumulation
    fused: Any = sequences._fused(job)
    share: Any = lambda self, x, y: nn.functional.mse_loss(self.head(x), y) / micro  # noqa: E731

    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        x, y = self.below(inputs).unsqueeze(0), targets.unsqueeze(0)
        if fused:
            return fused.apply(share, self, x, y, None, 2, list(self.head.parameters()), "mean") * micro
        return share(self, x, y) * micro

    engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 1)))
    job.steps(engine, range(4), lambda batch: engine(*batch))


@scenario("a mean over tiles has a factor before another loss is added, and the input above a frozen layer a gradient")
@settings(works_around=("tiled_compute_divides_gradient", "tiled_frozen_input"), release="0.18.9", **one_job(stage="1"))
def tiles_with_factor_and_input(job: Job) -> None:
    nn = job.torch.nn
    module = None if job.plain else importlib.import_module(_TILED)
    part: Any = lambda mlp, x: mlp(x).tanh()  # noqa: E731
    loss_of: Any = lambda head, x, y: nn.functional.mse_loss(head(x), y)  # noqa: E731

    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        x, y = self.below(inputs)[None], targets[None]
        own, head = list(self.mlp.parameters()), list(self.head.parameters())
        if not module:
            x = part(self.mlp, x)
            return self.other(x).square().mean() + loss_of(self.head, x, y)
        x = module.TiledMLP.apply(part, self.mlp, x.requires_grad_(), 2, own)
        other, given = self.other(x).square().mean(), {"x": x, "y": y}
        return other + 1.0 * module.sequence_tiled_compute(loss_of, 4, 2, given, {"head": self.head}, "x", head, 0)

    layers = {"below": nn.Linear(16, 16).requires_grad_(False), "mlp": nn.Linear(16, 16)}
    engine = job.engine(job.model(forward, **layers, head=nn.Linear(16, 1), other=nn.Linear(16, 1)))
    job.steps(engine, range(4), lambda batch: engine(*batch))


@scenario("what is not contiguous is copied before TiledMLP and TiledFusedLogitsLoss, and so is the output's gradient")
@settings(works_around=("tiled_mlp_strided", "tiled_logits_strided"), release="0.18.9", **one_job())
def copied_before_tiles(job: Job) -> None:
    nn = job.torch.nn
    module = None if job.plain else importlib.import_module(_TILED)
    part: Any = lambda mlp, x: mlp(x).tanh()  # noqa: E731
    loss_of: Any = lambda self, x, y: nn.functional.mse_loss(self.head(x), y)  # noqa: E731

    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        x, y = (each.view(2, 2, -1).transpose(0, 1) for each in (self.below(inputs), targets))
        if not module:
            return loss_of(self, part(self.mlp, x).transpose(0, 1), y)
        x = module.TiledMLP.apply(part, self.mlp, x.contiguous(), 2, list(self.mlp.parameters()))
        x.register_hook(job.torch.Tensor.contiguous)
        x, y = x.transpose(0, 1).contiguous(), y.contiguous()
        return module.TiledFusedLogitsLoss.apply(loss_of, self, x, y, None, 2, list(self.head.parameters()), "mean")

    layers = {"below": nn.Linear(16, 16), "mlp": nn.Linear(16, 16), "head": nn.Linear(16, 1)}
    engine = job.engine(job.model(forward, **layers))
    job.steps(engine, range(4), lambda batch: engine(*batch))


@scenario("FPDT_FFN's own bias is added in place of the one that it returns, and FPDT_LogitsLoss's losses are masked")
@settings(works_around=("fpdt_ffn_bias_untrained", "fpdt_logits_loss_ignored"), release="0.18.9", **one_job(ranks="1"))
def fpdt_by_hand(job: Job) -> None:
    nn, torch = job.torch.nn, job.torch
    torch._dynamo.config.disable = True  # the activation function is not compiled for this device
    fpdt = None if job.plain else importlib.import_module("deepspeed.sequence.fpdt_layer")

    def forward(self: Any, x: Any, labels: Any) -> Any:
        x, up, down = self.below(x)[:, None], self.up, self.down
        if fpdt:
            x = fpdt.FPDT_FFN.apply(x, up.weight, up.bias, down.weight, down.bias, False, 2)[0] + down.bias
            group = torch.distributed.group.WORLD
            losses = fpdt.FPDT_LogitsLoss.apply(x, labels[None], self.head.weight, 0, 1, group, 2)[:, 0]
        else:
            x = down(nn.functional.gelu(up(x), approximate="tanh"))
            losses = nn.functional.cross_entropy(self.head(x)[:, 0], labels.clamp(min=0), reduction="none")
        return (losses * (labels != -100)).mean()

    layers = {"below": nn.Linear(16, 16), "up": nn.Linear(16, 24), "down": nn.Linear(24, 16)}
    engine = job.engine(job.model(forward, **layers, head=nn.Linear(16, 120, bias=False)))
    labels = torch.tensor([3, -100, 7, -100], device=job.device)
    job.steps(engine, range(4), lambda batch: engine(batch[0], labels))


@scenario("labels are masked: a sum over tiles is divided by the number of labels, and TiledLoss has one tile")
@settings(works_around=("tiled_loss_unweighted",), release="0.18.9", **one_job())
def tiles_of_a_sum(job: Job) -> None:
    nn, words = job.torch.nn, sequences._WORDS
    module = None if job.plain else importlib.import_module(_TILED)

    def share(self: Any, x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(self.head(x).view(-1, words), y.view(-1), reduction="sum") / self.count

    def forward(self: Any, inputs: Any, fused: bool) -> Any:
        x = self.below(inputs)[None]
        labels = job.torch.arange(4, device=x.device)[None]
        labels[:, :1] = -100
        self.count = (labels != -100).sum()
        if module and fused:
            parameters = list(self.head.parameters())
            return module.TiledFusedLogitsLoss.apply(share, self, x, labels, None, 2, parameters, "sum")
        if module:
            return module.TiledLoss.apply(sequences._mean, self.head(x), words, labels, 1)
        return share(self, x, labels)

    for first, fused in ((0, True), (3, False)):
        engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, words)))
        for step in range(first, first + 3):
            job.train(engine, step, lambda batch, engine=engine, fused=fused: engine(batch[0], fused))


@scenario("three tokens are padded to two tiles of TiledLoss that have the same length")
@settings(works_around=("tiled_loss_uneven", "tiled_loss_one_token"), release="0.18.9", **one_job())
def padded_to_tiles(job: Job) -> None:
    nn, words = job.torch.nn, sequences._WORDS
    module = None if job.plain else importlib.import_module(_TILED)

    def forward(self: Any, inputs: Any) -> Any:
        logits = self.head(self.below(inputs)[None, :3])
        labels = job.torch.tensor([[-100, 1, 2]], device=logits.device)  # each tile has one
        if not module:
            return sequences._mean(logits, None, words, labels)
        logits, labels = nn.functional.pad(logits, (0, 0, 0, 1)), nn.functional.pad(labels, (0, 1), value=-100)
        return module.TiledLoss.apply(sequences._mean, logits, words, labels, 2)

    engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, words)))
    job.steps(engine, range(4), lambda batch: engine(batch[0]))


@scenario("vocab_sequence_parallel_cross_entropy's losses are masked, and logged are those of cross_entropy")
@settings(
    works_around=("ulysses_cross_entropy_ignored", "ulysses_cross_entropy_overflow"), release="0.18.9", **one_job()
)
def losses_masked(job: Job) -> None:
    from dsfix.patches.sequence import _losses as losses

    hidden, labels, weights = losses._words(True, 600)
    logits, own = (sequences._part(job, each, 0).to(job.device) for each in (hidden @ weights.t(), labels))
    of_each = functools.partial(job.torch.nn.functional.cross_entropy, reduction="none")
    found = of_each(logits.requires_grad_().flatten(0, 1), own.flatten())
    job.note("losses", found)
    if not job.plain and job._lab.deepspeed:
        module = importlib.import_module("deepspeed.sequence.cross_entropy")
        gather = module.dist.all_gather_into_tensor
        flat: Any = lambda to, each, group: gather(to.view(-1), each.reshape(-1), group=group)  # noqa: E731
        with mock.patch.object(module.dist, "all_gather_into_tensor", flat):  # gloo compares the shapes
            found = module.vocab_sequence_parallel_cross_entropy(logits, own, job.torch.distributed.group.WORLD)
        found = found * (labels != -100).to(job.device)
    found.sum().backward()
    job.note("gradients of the logits", logits.grad)


@scenario("the engine sums the gradients of the ranks that share a sequence, and the script does not divide them")
@settings(works_around=("ulysses_gradients_too_small",), release="0.14.2", **one_job())
def summed_by_the_engine(job: Job) -> None:
    from dsfix.patches.sequence._ulysses import OneSequence

    model = job.MLP()
    if job.plain:
        engine = job.engine(model)
    else:
        groups = OneSequence(job._lab)
        initial, given = job._whole(model), list(model.parameters())
        engine = job._lab.initialize(model, space.config(job.setting), model_parameters=given, mpu=groups)
        job._initial[id(engine)] = initial
        engine.gradient_average = False
    times = 2 if job.plain else 1
    job.steps(engine, range(3), backward=lambda value: engine.backward(value * times))


@scenario("a job with sequence parallelism resumes, and calls all its ranks the first of the model's")
@settings(works_around=("ulysses_load_checkpoint_index",), release="0.18.9", **one_job(stage="2"))
def first_of_the_model(job: Job) -> None:
    if job.plain:
        _resumed(job, job.engine)
        return
    groups: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
    groups.initialize_sequence_parallel(sequence_parallel_size=2)

    def engine(model: Any) -> Any:
        initial, given = job._whole(model), list(model.parameters())
        made = job._lab.initialize(model, space.config(job.setting), model_parameters=given, mpu=groups)
        job._initial[id(made)] = initial
        return made

    with mock.patch.object(groups, "get_model_parallel_rank", return_value=0):
        _resumed(job, engine)


def _resumed(job: Job, make: Any) -> None:
    engine = make(job.MLP())
    for step in range(5):
        if step == 2:
            job.save(engine, "two")
            engine = make(job.MLP(seed=1))
            job.load(engine, "two")
            job.look(engine, "loaded")
        times = 2 if job.plain else 1  # of ranks with parts of a sequence, gradients are added
        job.train(engine, step, backward=lambda value, engine=engine, times=times: engine.backward(value * times))


def _noted(job: Job, inputs: Any, output: Any, sequence: int) -> None:
    output.square().sum().backward()
    named = zip(("output", "of the queries", "of the keys", "of the values"), (output, *(x.grad for x in inputs)))
    for name, each in named:
        job.note(name, sequences._part(job, each, sequence) if job.plain else each)


@scenario("Ulysses' attention, sequence-first: the script turns its tensors around for DeepSpeed, and back")
@settings(works_around=("ulysses_sequence_first_shape",), release="0.18.9", **one_job())
def turned_for_attention(job: Job) -> None:
    def turned(self: Any, query: Any, key: Any, value: Any, batch_dim_idx: int) -> Any:
        local, self.gather_idx = self.local_attn, 1
        self.local_attn = lambda *inputs: local(*(each.transpose(0, 1) for each in inputs)).transpose(0, 1)
        return former(self, *(each.transpose(0, 1) for each in (query, key, value)), 0).transpose(0, 1)

    if job.plain:
        _noted(job, *sequences._attend(job, 0), 0)
        return
    attention = importlib.import_module(_LAYER).DistributedAttention
    former = attention.forward
    with mock.patch.object(attention, "forward", turned):
        _noted(job, *sequences._attend(job, 0), 0)


@scenario("Ulysses' attention with a stream: the script's own hooks wait for the gradients of queries and keys")
@settings(works_around=("ulysses_overlap_gradients",), release="0.18.9", **one_job())
def waited_for_in_own_hooks(job: Job) -> None:
    if job.plain:
        _noted(job, *sequences._attend(job, 1), 1)
        return
    attention = importlib.import_module(_LAYER).DistributedAttention
    former = attention.forward

    class Stream(job.torch.cuda.Stream):  # type: ignore[name-defined,misc,unused-ignore]
        """Is unequal to None with any torch."""

        def __ne__(self, other: object) -> bool:
            return not self == other

        __hash__ = job.torch.cuda.Stream.__hash__

    def waiting(self: Any, query: Any, key: Any, value: Any, batch_dim_idx: int) -> Any:
        def received(name: str, gradient: Any) -> Any:
            self.overlap_handles[f"{name}_work"].wait()
            later = self.overlap_handles[f"{name}_post_all2all_func"]
            return later(self.overlap_handles[f"{name}_grad"]).reshape(gradient.shape)

        query, key = ((each * 1).view_as(each) for each in (query, key))  # as from a projection
        output = former(self, query, key, value, batch_dim_idx)
        query.register_hook(functools.partial(received, "dq"))
        key.register_hook(functools.partial(received, "dk"))
        return output

    start = functools.partialmethod(attention.__init__, sp_stream=Stream())
    with mock.patch.object(attention, "__init__", start), mock.patch.object(attention, "forward", waiting):
        _noted(job, *sequences._attend(job, 1), 1)


@scenario("each epoch with Ulysses' adapter has a new iterator of the DataLoader, or a new adapter")
@settings(works_around=("ulysses_second_epoch_empty",), release="0.17.2", **one_job())
def iterator_of_each_epoch(job: Job) -> None:
    loader: Any = None if job.plain else sequences._loader(job)
    with contextlib.nullcontext() if job.plain else sequences._gloo(job):
        for epoch in range(4):
            if loader and epoch < 2:
                loader.iter = iter(loader.dl)
            elif loader:
                loader = sequences._loader(job)
            for number, batch in enumerate(sequences._parts(job) if job.plain else loader):
                sequences._note(job, f"epoch {epoch}, batch {number}", batch)
