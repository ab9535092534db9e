"""Models divided among ranks, by AutoTP or as a pipeline, in scripts that work around a bug."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import pipelines
from matrix.bystanders.scenarios.around_zero3 import _one

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_TWO: Any = {"stage": "0", "partitioning": "parameters persist", "ranks": "2"}


def _passed(job: Job, found: Any) -> None:
    from dsfix.lab import autotp

    job.note("output", autotp.outputs(found)["output"])


def _sharded(job: Job, kind: Any, layer: str) -> None:
    """With the order of another layer's fused weight."""
    from dsfix.lab import autotp

    whole = autotp.causal(kind)
    if job.plain:
        _passed(job, whole)
        return
    assert job._lab.deepspeed
    module = importlib.import_module("deepspeed.module_inject.auto_tp")
    prepare = module.prepare_tp_fused_qkvw
    with mock.patch.object(module, "prepare_tp_fused_qkvw", lambda _, *rest: prepare(layer, *rest)):
        _passed(job, autotp.shard(job._lab, whole))


@scenario("sharded inference of Falcon, whose fused weight is divided as BLOOM's on the script's word",
    works_around=("autotp_falcon_fused_weight",), release="0.13.1", **_one(**_TWO))  # fmt: skip
def sharded_falcon_as_bloom(job: Job) -> None:
    from dsfix.lab import autotp

    _sharded(job, autotp.FALCON, "BloomBlock")


@scenario("sharded inference of MPT, whose layer the script gives by its name alone",
    works_around=("autotp_fused_weight_unrecognized",), release="0.13.4", **_one(**_TWO))  # fmt: skip
def sharded_mpt_by_one_name(job: Job) -> None:
    from dsfix.lab import autotp

    _sharded(job, autotp.MPT, "MptBlock")


@scenario("sharded inference of MPT, whose numbers of heads and widths the script divides or sets",
    works_around=("autotp_mpt_kv_heads",), release="0.12.2", **_one(**_TWO))  # fmt: skip
def sharded_mpt_by_hand(job: Job) -> None:
    from dsfix.lab import autotp

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


@scenario("a pipeline's gradients are divided on the last stage only, by an attribute or a hook of the script's",
    works_around=("pipeline_accumulation_scaled_per_stage",), release="0.18.9",
    **_one(**_TWO, accumulation="2"))  # fmt: skip
def divided_on_last_stage(job: Job) -> None:
    for name, value in (("_scale_wrt_gas", False), ("_backward_prologue_per_tensor", lambda gradient: gradient)):
        engine = pipelines._pipeline(job, {}, 2)
        if not job.plain and not engine.is_last_stage():
            setattr(engine, name, value)
        _trained(job, engine)


@scenario("a pipeline's loss is divided by the script, which says so to the engine",
    works_around=("pipeline_accumulation_unscaled",), release="0.17.6",
    **_one(**_TWO, accumulation="2"))  # fmt: skip
def divided_in_loss_of_pipeline(job: Job) -> None:
    engine = pipelines._pipeline(job, {}, 2)
    if not job.plain:
        loss = engine.module.loss_fn
        engine.module.loss_fn = lambda *given: loss(*given) / job.accumulation
        engine.scale_wrt_gas = False
    _trained(job, engine)


@scenario("a pipeline accumulates in bf16, and the script gives the fp32 weights their gradients",
    works_around=("pipeline_bf16_accumulation_no_update",), release="0.14.2",
    **_one(**_TWO, accumulation="2", precision="bf16"))  # fmt: skip
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
