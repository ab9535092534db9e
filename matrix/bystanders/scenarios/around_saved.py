"""Checkpoints, recomputed blocks and buffers, in scripts that work around a bug."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import buffers, conversions
from matrix.bystanders.scenarios.around_zero3 import _one, _replaced

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_FIRST: Any = {"stage": "1", "partitioning": "parameters persist"}
_BIAS = "e_score_correction_bias"


@scenario("jobs resume with torch.load that unpickles, and with DeepSpeed's classes declared safe",
    works_around=("checkpoint_weights_only",), release="0.15.4", **_one(**_FIRST))  # fmt: skip
def unpickled(job: Job) -> None:
    torch = job.torch

    def resume() -> None:
        job.resume(lambda seed: job.engine(job.MLP(seed=seed)))

    load = torch.load
    with mock.patch.object(torch, "load", lambda *args, **options: load(*args, weights_only=False, **options)):
        resume()
    if job.plain:
        resume()
        return
    classes = [("runtime.zero.config", "ZeroStageEnum"), ("runtime.fp16.loss_scaler", "LossScaler")]
    classes.append(("utils.tensor_fragment", "fragment_address"))
    safe = [getattr(importlib.import_module(f"deepspeed.{module}"), name) for module, name in classes]
    with torch.serialization.safe_globals(safe):
        resume()


@scenario("torch's AdamW and elastic_checkpoint: numbers keep their shape, and the states are not loaded",
    works_around=("elastic_checkpoint_scalar_step", "elastic_checkpoint_torch_adam"),
    **_one(**_FIRST, optimizer="AdamW"))  # fmt: skip
def elastic_without_states(job: Job) -> None:
    def sparing(lean: Any) -> Any:
        def split(self: Any, state: dict[str, Any], padding: int) -> dict[str, Any]:
            numbers = {key: each for key, each in state.items() if job.torch.is_tensor(each) and not each.dim()}
            return {**lean(self, {key: state[key] for key in state if key not in numbers}, padding), **numbers}

        return split

    method = "DeepSpeedZeroOptimizer._get_state_without_padding"
    with _replaced(job, "deepspeed.runtime.zero.stage_1_and_2", method, sparing):
        job.resume(lambda seed: job.engine(job.MLP(seed=seed), **conversions._ELASTIC), optimizer=False)


@scenario("hooks of recomputed blocks are removed from the parameters after each step",
    works_around=("checkpoint_hooks_kept",), release="0.14.2", **_one(**{**_FIRST, "stage": "0"}))  # fmt: skip
def hooks_removed(job: Job) -> None:
    nn = job.torch.nn

    def forward(self: Any, x: Any) -> Any:
        recomputed = None if job.plain else importlib.import_module("deepspeed").checkpointing.non_reentrant_checkpoint
        return self.head(self.block(x) if recomputed is None else recomputed(self.block, x))

    engine = job.engine(job.model(forward, block=job.MLP().blocks[0], head=nn.Linear(16, 1, bias=False)))
    for step in range(4):
        job.train(engine, step)
        for each in engine.module.parameters():
            (each._backward_hooks or {}).clear()


@scenario("buffers are put back in fp32 after the engine's cast",
    works_around=("half_rotary_frequencies", "half_routing_bias"), **_one(**_FIRST, precision="bf16"))  # fmt: skip
def buffers_put_back(job: Job) -> None:
    torch = job.torch

    class Router(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer(_BIAS, torch.tensor([8.0, 8.004, 8.012, 8.008]))  # all of them 8.0 in bf16

        def forward(self) -> Any:
            return getattr(self, _BIAS).argmax()

    attention = buffers._attention(job, buffers._rotary(job), buffers._FAR)
    scales = torch.nn.Parameter(torch.ones(4, 16))
    forward = lambda self, x: self.attention(x * self.scales[self.router()])  # noqa: E731
    model: Any = job.model(forward, attention=attention, router=Router(), scales=scales)
    model._keep_in_fp32_modules_strict = (_BIAS,)
    kept = {name: each.clone() for name, each in model.named_buffers()}
    engine = job.engine(model)
    for name, each in engine.module.named_buffers():
        each.data = kept[name].to(job.device)
    for step in range(4):
        job.train(engine, step)
