"""Checkpoints: saved, resumed, exported."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import engines, optimizers

_SEVERAL = ("2", "3")


@scenario("a checkpoint is written after each step, none is loaded")
def saved(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        job.save(engine, f"step{step}")


@scenario("a checkpoint is written within a round", accumulation=_SEVERAL)
def saved_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            engine.step()
            if micro == 0:
                job.save(engine, f"step{step}")
        job.look(engine, f"step {step}")


@scenario("a checkpoint written within a round is loaded by a new engine", accumulation=_SEVERAL)
def resumed_from_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.train(engine, 0)
    engine.backward(job.loss(engine, job.batch(100)))
    engine.step()
    job.save(engine, "within")
    engine = job.engine(job.MLP())
    job.load(engine, "within")
    job.steps(engine, range(1, 4))


@scenario("a new engine in the same process resumes from a checkpoint")
def resumed(job: Job) -> None:
    job.resume(lambda _: job.engine(job.MLP()))


@scenario("the engine returns to an earlier checkpoint, not the last one")
def back_to_another_tag(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        job.save(engine, f"step{step}")
    job.load(engine, "step1")
    job.look(engine, "back")
    job.steps(engine, range(3, 5))


@scenario("after an unfinished round the engine returns to a checkpoint", accumulation=_SEVERAL)
def back_from_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(2))
    job.save(engine, "two")
    engine.set_gradient_accumulation_boundary(False)
    engine.backward(job.loss(engine, job.batch(100)))
    engine.zero_grad()
    job.load(engine, "two")
    for step in range(2, 4):
        for micro, batch in enumerate(job.batches(step)):
            engine.set_gradient_accumulation_boundary(micro + 1 == job.accumulation)
            engine.backward(job.loss(engine, batch))
            engine.step()
        job.look(engine, f"step {step}")


@scenario("a new engine starts from the weights of a checkpoint: load_module_only")
def warm_start(job: Job) -> None:
    job.resume(lambda seed: job.engine(job.MLP(seed=seed)), module_only=True)


@scenario("a new engine loads a checkpoint without the optimizer's states")
@settings(works_around=("zero3_load_module_only_unsaid",))
def resumed_without_optimizer(job: Job) -> None:
    job.resume(lambda seed: job.engine(job.MLP(seed=seed)), optimizer=False)


@scenario("the engine returns to a checkpoint's weights and keeps its optimizer's states")
def back_to_weights(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.train(engine, 0)
    job.save(engine, "one")
    job.train(engine, 1)
    job.load(engine, "one", optimizer=False)
    job.steps(engine, range(2, 4))


@scenario("a resumed engine writes a checkpoint, from which a third one resumes")
def resumed_twice(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        job.save(engine, f"step{step}")
        engine = job.engine(job.MLP())
        job.load(engine, f"step{step}")
    job.train(engine, 3)


@scenario("weights, views of them, a shared one and a tensor of the CPU are copied to be saved, and training goes on")
@settings(pinned=[{"stage": "2", "precision": "bf16"}, {"stage": "1", "offload": "optimizer"}], stage="012")
def copied_to_save(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(2))
    if not job.plain:
        clone: Any = importlib.import_module("deepspeed.checkpoint.utils").clone_tensors_for_torch_save
        _copy(job, clone, engine.module.state_dict())
    job.steps(engine, range(2, 4))


def _copy(job: Job, clone: Any, weights: dict[str, Any]) -> None:
    name, weight = next(iter(weights.items()))
    more = {"a part": weight[1:3], "turned": weight.t(), "again": weight, "repeated": weight[:1].expand(4, -1)}
    given: Any = {"model": {**weights, **more}, "rest": [job.torch.arange(5.0), 3, name]}
    copies = clone(given)
    for each, tensor in copies["model"].items():
        assert job.torch.equal(tensor, given["model"][each].cpu()), each
        about = tensor.dtype, tensor.device, tensor.stride(), tensor.untyped_storage().nbytes(), tensor.requires_grad
        job.bits(f"copy of {each}", repr(about))
    assert copies["model"]["again"].data_ptr() != copies["model"][name].data_ptr()
    assert copies["rest"][0].data_ptr() != given["rest"][0].data_ptr()
    job.bits("rest", repr(copies["rest"][1:]))


_ONCE: Any = {"accumulation": ("1",), "partitioning": ("all",)}


@scenario("ZeRO++ hpZ, in nodes of two ranks, resumes from a checkpoint")
@settings(pinned=[{"stage": "3", "partitioning": "all"}], **{**engines._FITS, **_ONCE, "ranks": ("2",)})
def hpz_resumed(job: Job) -> None:
    config = engines._hpz(2)
    job.resume(lambda seed: job.engine(engines._model(job, seed), zero_optimization=config))


@scenario("ZeRO-3 that averages gradients by all-reduce resumes from a checkpoint")
@settings(
    pinned=[{"stage": "3", "precision": "bf16", "partitioning": "all"}], **{**_ONCE, "stage": "3", "ranks": ("2",)}
)
def all_reduced_resumed(job: Job) -> None:
    def make(seed: int) -> Any:
        return job.engine(engines._model(job, seed), zero_optimization={"reduce_scatter": False})

    job.resume(make)


@scenario("Twin-Flow resumes from a checkpoint", **{**optimizers._HERE, "accumulation": ("1",), "clipping": ("off",)})
def twin_flow_resumed(job: Job) -> None:
    job.resume(lambda seed: optimizers._engine(job, job.MLP(seed=seed)))


@scenario("1-bit LAMB resumes from a checkpoint")
@settings(pinned=[{"ranks": "1"}], **{**optimizers._LAMB, "accumulation": ("1",), "clipping": ("off",)})
def onebit_lamb_resumed(job: Job) -> None:
    sys.modules.setdefault("cupy", ModuleType("cupy"))  # nothing of it is used but its name
    params = {**optimizers._LAMB_PARAMS, "freeze_step": 3}

    def make(seed: int) -> Any:
        model = job.MLP(seed=seed)
        whole = {**space.config(job.setting), "optimizer": {"type": "OneBitLamb", "params": params}}
        initial = job._whole(model)
        engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
        job._initial[id(engine)] = initial
        return engine

    job.resume(make)


_BLOCK = 3  # elements that share a scale
_FITS: Any = {
    "stage": "12",
    "offload": ("none",),
    "precision": ("fp32",),
    "accumulation": ("1",),
    "optimizer": ("client's SGD",),
    "reference": False,  # the states belong to a rank's partition
}


def _resume(job: Job, name: str, state_of: Any) -> None:
    class Scaled(job.torch.optim.SGD):  # type: ignore[name-defined,misc]
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._scale(parameter)
            return super().step(closure)

        def _scale(self, parameter: Any) -> None:
            """The larger the gradients so far, the smaller the steps."""
            found = state_of(parameter.grad)
            state = self.state[parameter].setdefault(name, job.torch.zeros_like(found))
            job.torch.maximum(state, found, out=state)
            parameter.grad.div_(1 + state.max())

    elastic = {"zero_optimization": {"elastic_checkpoint": True}}
    job.resume(lambda seed: job.engine(job.MLP(seed=seed), optimizer=lambda given: Scaled(given, lr=0.05), **elastic))


@scenario("elastic_checkpoint with an optimizer that keeps one number for all weights")
@settings(pinned=[{"stage": "1", "optimizer": "client's SGD"}], **_FITS)
def elastic_one_number(job: Job) -> None:
    _resume(job, "largest", lambda gradient: gradient.abs().max().reshape(1))


@scenario(
    "elastic_checkpoint with an optimizer that keeps one number per three weights, as 8-bit optimizers do per block"
)
@settings(pinned=[{"stage": "2", "optimizer": "client's SGD"}], **_FITS)
def elastic_blocks(job: Job) -> None:
    def largest(gradient: Any) -> Any:
        padded = job.torch.nn.functional.pad(gradient.abs().flatten(), (0, -gradient.numel() % _BLOCK))
        return padded.view(-1, _BLOCK).amax(dim=1)

    _resume(job, "largest", largest)


_ZERO: Any = {"stage": "123"}


@scenario("the fp32 weights of a checkpoint are exported", pinned=[{"stage": "3"}, {"stage": "1"}], **_ZERO)
def exported(job: Job) -> None:
    _written_out(job, job.MLP())


@scenario("the fp32 weights of a model that is half frozen are exported")
@settings(pinned=[{"stage": "2"}, {"stage": "3"}], **_ZERO)
def exported_frozen(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].requires_grad_(False)
    _written_out(job, model)


def _written_out(job: Job, model: Any) -> None:
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    job.steps(engine, range(2))
    job.save(engine, "two")
    if job.plain:
        written: Any = job.parameters(engine)
    else:
        job.torch.distributed.barrier()
        written = _converted(job) if job.rank == 0 else {}
    for name, weight in sorted(written.items()):
        job.note(f"written: {name}", weight)
    job.train(engine, 2)


def _converted(job: Job) -> dict[str, Any]:
    zero_to_fp32 = importlib.import_module("deepspeed.utils.zero_to_fp32")
    convert = zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict
    into_directory = "output_dir" in inspect.signature(convert).parameters
    out = job.tmp / "written"
    if into_directory:
        out.mkdir()
    with mock.patch.dict(sys.modules, huggingface_hub=_hub()):
        convert(str(job.tmp / "checkpoint"), str(out), tag="two")
    weights: dict[str, Any] = job.torch.load(out / "pytorch_model.bin" if into_directory else out)
    return weights


def _hub() -> ModuleType:
    """Replaces huggingface_hub, which zero_to_fp32 asks how to split the weights into files: all into one."""
    module = ModuleType("huggingface_hub")
    module.split_torch_state_dict_into_shards = (  # type: ignore[attr-defined]
        lambda weights, filename_pattern, **_: SimpleNamespace(
            is_sharded=False, filename_to_tensors={filename_pattern.format(suffix=""): list(weights)}
        )
    )
    return module


def _saved(job: Job, model: Any) -> Any:
    engine = job.engine(model)
    job.steps(engine, range(2))
    job.save(engine, "two")
    if not job.plain:
        job.torch.distributed.barrier()
    return engine


@scenario("the fp32 weights of a checkpoint are read into a dict, without a file")
@settings(pinned=[{"stage": "2"}], stage="123", works_around=("zero_to_fp32_uninitialized",))
def exported_into_a_dict(job: Job) -> None:
    engine = _saved(job, job.MLP())
    written: Any = {}
    if job.plain:
        written = job.parameters(engine)
    elif job.rank == 0:
        read = importlib.import_module("deepspeed.utils.zero_to_fp32").get_fp32_state_dict_from_zero_checkpoint
        written = read(str(job.tmp / "checkpoint"), tag="two")
    for name, weight in sorted(written.items()):
        job.note(f"read: {name}", weight)
    job.train(engine, 2)


@scenario("the fp32 weights of a model with floating-point buffers are exported", pinned=[{"stage": "2"}], stage="123")
def exported_with_buffers(job: Job) -> None:
    job.torch.manual_seed(0)
    nn = job.torch.nn
    model = job.model(
        lambda self, x: self.head(self.body(x).tanh() * self.scale.to(x.dtype)),
        body=nn.Linear(16, 16),
        head=nn.Linear(16, 1),
    )
    model.register_buffer("scale", job.torch.arange(16) / 16)
    model.register_buffer("unused", job.torch.ones(3, dtype=job.torch.float64))
    engine = _saved(job, model)
    written: Any = {}
    if job.plain:
        written = {**job.parameters(engine), **dict(engine.module.named_buffers())}
    elif job.rank == 0:
        written = _converted(job)
    for name, weight in sorted(written.items()):
        job.note(f"written: {name}", weight)
        if not job.plain:
            job.bits(f"dtype of {name}", str(weight.dtype))
    job.train(engine, 2)


def _exported_as_safetensors(job: Job, model: Any, save: Callable[[Any], Any]) -> None:
    """save: what the script puts in place of save_file of safetensors. Before 0.15.3, zero_to_fp32 does not call it."""
    engine = _saved(job, model)
    written: Any = {}
    if job.plain:
        written = engine.module.state_dict()
    elif job.rank == 0:
        convert = importlib.import_module("deepspeed.utils.zero_to_fp32").convert_zero_checkpoint_to_fp32_state_dict
        if "safe_serialization" in inspect.signature(convert).parameters:
            safetensors, out = importlib.import_module("safetensors.torch"), job.tmp / "written"
            out.mkdir()
            with mock.patch.object(safetensors, "save_file", save(safetensors.save_file)):
                convert(str(job.tmp / "checkpoint"), str(out), max_shard_size=None, safe_serialization=True, tag="two")
            written = safetensors.load_file(out / "model.safetensors")
        else:
            written = _converted(job)
    for name, weight in sorted(written.items()):
        job.note(f"written: {name}", weight)
    job.train(engine, 2)


@scenario("the fp32 weights are exported as safetensors", pinned=[{"stage": "2"}], stage="123", release="0.18.9")
def exported_as_safetensors(job: Job) -> None:
    _exported_as_safetensors(job, job.MLP(), lambda save_file: save_file)


_TIED = tuple(f"zero_to_fp32_safetensors_tied{each}" for each in ("", "_before_0_16_0", "_before_0_19_7"))


@scenario("tied weights are exported as safetensors by a save_file of the script, which copies them")
@settings(works_around=_TIED, **space.one_job(stage="2"))
def tied_exported_as_safetensors(job: Job) -> None:
    model = job.MLP()
    model.blocks[1][0].weight = model.blocks[0][0].weight  # type: ignore[index,unused-ignore]

    def copying(save_file: Any) -> Any:
        return lambda given, *args, **more: save_file(
            {name: each.clone() for name, each in given.items()}, *args, **more
        )

    _exported_as_safetensors(job, model, copying)
