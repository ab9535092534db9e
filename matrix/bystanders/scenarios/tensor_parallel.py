"""Tensor parallelism, in training and in inference by AutoTP."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings

_SHARDS: Any = {"stage": "012", "ranks": ("2", "4"), "optimizer": ("SGD", "AdamW"), "offload": ("none",)}


def _two_shards(job: Job) -> Any:
    """The mpu of Megatron: neighbours hold the two shards of the model."""
    new, ranks = job.torch.distributed.new_group, range(job.world_size)
    both = [list(ranks[first : first + 2]) for first in ranks[::2]]
    alike = [list(ranks[first::2]) for first in range(2)]
    (model,) = [group for mine, group in [(each, new(each)) for each in both] if job.rank in mine]
    (data,) = [group for mine, group in [(each, new(each)) for each in alike] if job.rank in mine]
    place, copies = job.rank % 2, job.world_size // 2
    return SimpleNamespace(
        get_model_parallel_rank=lambda: place,
        get_model_parallel_world_size=lambda: 2,
        get_model_parallel_group=lambda: model,
        get_tensor_model_parallel_rank=lambda: place,
        get_tensor_model_parallel_world_size=lambda: 2,
        get_tensor_model_parallel_group=lambda: model,
        get_data_parallel_rank=lambda: job.rank // 2,
        get_data_parallel_world_size=lambda: copies,
        get_data_parallel_group=lambda: data,
    )


def _resumed(job: Job, mpu: Any, seed: int) -> None:
    def start(seed: int) -> Any:
        model = job.MLP(seed=seed)
        for parameter in model.parameters():
            parameter.model_parallel = True  # type: ignore[attr-defined,unused-ignore]
        return job._lab.initialize(model, space.config(job.setting), model_parameters=list(model.parameters()), mpu=mpu)

    def train(engine: Any, step: int) -> None:
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)

    engine = start(seed)
    for step in range(2):
        train(engine, step)
    job.save(engine, "two")
    engine = start(seed + 2)
    job.load(engine, "two")
    train(engine, 2)


@scenario("two tensor-parallel ranks resume from a checkpoint", pinned=[{"stage": "1"}], reference=False, **_SHARDS)
def shards_resumed(job: Job) -> None:
    assert job._lab.deepspeed
    job._lab.deepspeed.init_distributed(verbose=False)
    _resumed(job, _two_shards(job), job.rank % 2)


@scenario("Ulysses sequence parallelism resumes from a checkpoint")
@settings(
    pinned=[{"stage": "2"}, {"stage": "0"}, {"stage": "1", "ranks": "4"}],
    **{**_SHARDS, "precision": ("fp32", "bf16"), "clipping": ("off",)},
)
def ulysses_resumed(job: Job) -> None:
    """Each rank trains on the same batches. DeepSpeed adds the gradients of the two ranks of a sequence."""
    if not job.plain:
        assert job._lab.deepspeed
        job._lab.deepspeed.init_distributed(verbose=False)
        groups: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.parallel_state_sp")
        groups.initialize_sequence_parallel(sequence_parallel_size=2)

    def start(seed: int) -> Any:
        model = job.MLP(seed=seed)
        if job.plain:
            return job.engine(model)
        with job.torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(job.dtype))
        whole = space.config(job.setting)
        return job._lab.initialize(model, whole, model_parameters=list(model.parameters()), mpu=groups)

    def train(engine: Any, step: int) -> None:
        from dsfix.lab.models import regression_batch

        for micro in range(job.accumulation):
            inputs, targets = regression_batch(0, step * job.accumulation + micro)
            batch = inputs.to(job.device, job.dtype), targets.to(job.device)
            engine.backward(job.loss(engine, batch) * (2 if job.plain else 1))
            engine.step()
        for name, parameter in job.parameters(engine).items():
            job.note(f"step {step}: {name}", parameter)

    engine = start(0)
    for step in range(2):
        train(engine, step)
    job.save(engine, "two")
    engine = start(1)
    job.load(engine, "two")
    for step in range(2, 4):
        train(engine, step)


_FITS: Any = {
    "stage": "0",
    "offload": ("none",),
    "precision": ("fp32",),
    "partitioning": ("parameters persist",),
    "ranks": ("2",),
    "accumulation": ("1",),
    "optimizer": ("SGD",),
    "clipping": ("off",),
}


def _passed(job: Job, model: str, layer: str, groups: int, by_group: bool) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    names = ("self_attn", "query_key_value", "out_proj", "mlp", "up_proj", "down_proj")
    whole = autotp.causal(autotp.Kind(model, layer, *names, groups, by_group))
    found: Any = whole if job.plain else autotp.shard(job._lab, whole)
    for number in range(2):
        job.note(f"pass {number}", autotp.outputs(found)["output"])


@scenario("sharded inference of BLOOM's layer", pinned=[{}], **_FITS)
def sharded_bloom(job: Job) -> None:
    _passed(job, "Bloom", "BloomBlock", 8, True)


@scenario("sharded inference of GLM's layer", pinned=[{}], **_FITS)
def sharded_glm(job: Job) -> None:
    _passed(job, "GLM", "GLMBlock", 8, False)


@scenario("sharded inference of a layer that no name is known for", pinned=[{}], **_FITS)
def sharded_unknown(job: Job) -> None:
    _passed(job, "Other", "OtherBlock", 2, True)


@scenario("sharded inference of a DecoderLayer, as Falcon's own code names it", pinned=[{}], **_FITS)
def sharded_decoder_by_heads(job: Job) -> None:
    _passed(job, "RW", "DecoderLayer", 8, True)


@scenario("sharded inference of a DecoderLayer, as Falcon's own code names it, with two groups", pinned=[{}], **_FITS)
def sharded_decoder_by_groups(job: Job) -> None:
    _passed(job, "RW", "DecoderLayer", 2, True)


@scenario("sharded inference of MPT's layer", pinned=[{}], **_FITS)
def sharded_mpt(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    _passed_by_names(job, autotp.causal(autotp.MPT))


@scenario("sharded inference of Persimmon's layer", pinned=[{}], **_FITS)
def sharded_persimmon(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    names = ("self_attn", "query_key_value", "out_proj", "mlp", "up_proj", "down_proj")
    _passed_by_names(job, autotp.causal(autotp.Kind("Persimmon", "PersimmonDecoderLayer", *names, 8, True)))


def _passed_by_names(job: Job, whole: Any) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    found: Any = whole if job.plain else autotp.shard(job._lab, whole)
    for number in range(2):
        job.note(f"pass {number}", autotp.outputs(found)["output"])


@scenario("sharded inference of an MPT whose attention notes kv_n_heads, and needs it", pinned=[{}], **_FITS)
def sharded_mpt_by_names(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    _passed_by_names(job, autotp.noting_mpt())


@scenario("sharded inference of an MPT whose attention notes kv_n_heads, and needs only its weights")
@settings(pinned=[{}], **_FITS)
def sharded_mpt_by_weights(job: Job) -> None:
    from dsfix.patches.tensor_parallel import _autotp as autotp

    _passed_by_names(job, autotp.noting_mpt(from_weights=True))


@scenario("AutoTP training on patch embeddings, which the script makes contiguous", release="0.18.9")
@settings(works_around=("autotp_noncontiguous_gradients",), pinned=[{}], **_FITS)
def sharded_training(job: Job) -> None:
    """Each rank trains on the same images."""
    from dsfix.patches.tensor_parallel import _autotp as autotp

    model = autotp.image_model()
    model.model.register_forward_pre_hook(lambda _, inputs: inputs[0].contiguous())
    if job.plain:
        engine = job.engine(model)
    else:
        assert job._lab.deepspeed
        with autotp.names_of_transformers():
            sharded = job._lab.deepspeed.tp_model_init(model, tp_size=2, dtype=job.dtype)
            engine = job.engine(sharded, tensor_parallel={"autotp_size": 2})
    for step, samples in enumerate((1, 2, 1)):
        images = job.torch.randn(samples, 3, 4, 4, generator=job.torch.Generator().manual_seed(step))
        engine.backward(engine(images.to(job.device)).pow(2).mean())
        engine.step()
        for name, parameter in job.parameters(engine).items():
            if "embedding" in name:  # the others are sharded
                job.note(f"step {step}: {name}", parameter)
