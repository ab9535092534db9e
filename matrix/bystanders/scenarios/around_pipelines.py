"""Pipelines, in scripts that work around one of their bugs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import pipelines, tuples

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ENGINE = "deepspeed.runtime.pipe.engine"


def _one(release: str, **levels: str) -> dict[str, Any]:
    """A pipeline of two stages without ZeRO, with these levels, on this release: one job."""
    setting = {**space.plain(), "stage": "0", **levels}
    return {"release": release, "pinned": [setting], **{name: (level,) for name, level in setting.items()}}


@scenario("the first stage makes a float mask require a gradient, which the last stage does not need",
    works_around=("pipeline_float_without_gradient",), **_one("0.18.9"))  # fmt: skip
def mask_made_to_require_gradient(job: Job) -> None:
    def step(self: Any, given: Any) -> Any:
        x, mask = given
        mask = mask if mask.requires_grad else mask.clone().requires_grad_()
        return self.body(x).tanh() + self.other(x) * mask.detach(), mask

    last = lambda self, given: self.head(given[0]) + 0 * given[1].sum()  # noqa: E731
    start = tuples._PASSED["float mask"][2]
    with mock.patch.dict(tuples._PASSED, {"required": (step, last, start)}):
        tuples._trained(job, "required")


@scenario("stages pass tensors of two dtypes, and the script replaces the function that reuses buffers",
    works_around=("pipeline_receive_buffer_dtype",), **_one("0.18.9", ranks="4"))  # fmt: skip
def buffers_of_each_dtype(job: Job) -> None:
    if job.plain:
        tuples._trained(job, "float, indices, float")
        return
    engine = importlib.import_module(_ENGINE).PipelineEngine

    def allocate(self: Any, idx: int, shape: Any, dtype: Any) -> Any:
        buffers = self.__dict__.setdefault("buffers_by_dtype", {})
        size = job.torch.Size(shape).numel()
        if idx not in buffers or buffers[idx].dtype != dtype or buffers[idx].numel() < size:
            buffers[idx] = self._allocate_buffer(shape, dtype=dtype, num_buffers=1)[0]
        return buffers[idx].flatten()[:size].view(shape)

    with mock.patch.object(engine, "_allocate_or_extend_buffers", allocate):
        tuples._trained(job, "float, indices, float")


@scenario("stages pass tensors of two dtypes, and the script drops a buffer of the wrong one",
    works_around=("pipeline_receive_buffer_dtype",), **_one("0.18.9", ranks="4"))  # fmt: skip
def buffers_dropped(job: Job) -> None:
    if job.plain:
        tuples._trained(job, "float, indices, float")
        return
    engine = importlib.import_module(_ENGINE).PipelineEngine
    former = engine._allocate_or_extend_buffers

    def allocate(self: Any, idx: int, shape: Any, dtype: Any) -> Any:
        if idx < len(self._grad_layer_buf) and self._grad_layer_buf[idx].dtype != dtype:
            self._grad_layer_buf[idx] = job.torch.empty(0, dtype=dtype, device=job.device)
        return former(self, idx, shape, dtype)

    with mock.patch.object(engine, "_allocate_or_extend_buffers", allocate):
        tuples._trained(job, "float, indices, float")


@scenario("the loss function of a pipeline in bf16 returns fp32, and all ranks note the loss",
    works_around=("pipeline_half_loss_broadcast",), **_one("0.12.2", precision="bf16"))  # fmt: skip
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


@scenario("a pipeline's number of micro-batches is set for each evaluation",
    works_around=("pipeline_eval_micro_batches",), **_one("0.14.2", accumulation="2"))  # fmt: skip
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


@scenario("a pipeline's module is called before it has an engine: as prepared by the script, and layer by layer",
    works_around=("pipeline_module_runs_no_layer",), **_one("0.18.9", ranks="1"))  # fmt: skip
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


@scenario("the script tells the engine that the backward pass of each stage is its own",
    works_around=("pipeline_stage0_backward",), **_one("0.18.3"))  # fmt: skip
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


@scenario("two keys of tied layers have hashes that are the same on all ranks, as with a PYTHONHASHSEED",
    works_around=("pipeline_tied_keys_order",), **_one("0.16.0"))  # fmt: skip
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
