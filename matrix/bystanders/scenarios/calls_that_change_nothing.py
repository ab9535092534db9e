"""Calls in the middle of training that should change nothing: what is there is saved, loaded, read or moved."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_SEVERAL = ("2", "3")
# without plain PyTorch as the reference: nothing that patches make right, as several micro-batches or weight decay
_WITHOUT: Any = {"reference": False, "accumulation": ("1",), "precision": ("fp32", "bf16", "fp16")}


def _train(job: Job, call: Callable[[Any, int], None], **config: Any) -> None:
    """Six steps with the call after each. In half precision they are small: what the fp32 weights lose is seen."""
    engine = job.engine(job.MLP(), **config)
    _steps(job, engine, call)


def _train_without_reference(job: Job, call: Callable[[Any, int], None]) -> None:
    """No parameter has to be padded, by numbers that are not initialized."""
    model = job.MLP()
    model.head = job.torch.nn.Linear(16, 1, bias=False)
    sgd = job.torch.optim.SGD
    _steps(job, job.engine(model, optimizer=lambda given: sgd(given, lr=0.05, momentum=0.9)), call)


def _steps(job: Job, engine: Any, call: Callable[[Any, int], None]) -> None:
    if job.half:
        for group in engine.optimizer.param_groups:
            group["lr"] *= 0.01
    for step in range(6):
        job.train(engine, step)
        if not job.plain:
            call(engine, step)


def _load(job: Job, engine: Any, tag: str, **options: bool) -> None:
    engine.load_checkpoint(str(job.tmp / "checkpoint"), tag=tag, **options)


@scenario(
    "after each step a checkpoint is written, twice, and loaded",
    pinned=[{"precision": "bf16"}, {"stage": "2", "offload": "optimizer"}], stage="012",
)  # fmt: skip
def saved_and_loaded(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        job.save(engine, "same")
        job.save(engine, "same")
        _load(job, engine, "same")

    _train(job, call)


# of which DeepSpeed says that a new engine is needed
@scenario("ZeRO-3: after each step a checkpoint is written and loaded", stage="3", **_WITHOUT)
def zero3_saved_and_loaded(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        job.save(engine, f"step{step}")
        _load(job, engine, f"step{step}")

    _train_without_reference(job, call)


def _verified(job: Job, train: Callable[..., None] = _train, **options: bool) -> None:
    def call(engine: Any, step: int) -> None:
        job.save(engine, "same")
        _load(job, engine, "same", **options)

    train(job, call)


@scenario(
    "after each step a checkpoint is written and verified by loading it without the optimizer's states",
    pinned=[{"precision": "fp16", "ranks": "1"}, {"precision": "bf16", "optimizer": "client's AdamW"}], stage="0",
)  # fmt: skip
def verified(job: Job) -> None:
    _verified(job, load_optimizer_states=False, load_lr_scheduler_states=False)


# with ZeRO, DeepSpeed itself takes the fp32 weights from the rounded ones since 0.13.0
@scenario(
    "with ZeRO a checkpoint is verified by loading it without the optimizer's states",
    pinned=[{"stage": "1", "precision": "bf16"}, {"stage": "3", "precision": "fp16"}], stage="123", **_WITHOUT,
)  # fmt: skip
def zero_verified(job: Job) -> None:
    _verified(job, _train_without_reference, load_optimizer_states=False, load_lr_scheduler_states=False)


@scenario(
    "ZeRO of 0.12: a checkpoint is verified by loading it without the optimizer's states",
    pinned=[{"stage": "2", "precision": "fp16", "ranks": "1"}], release="0.12.2", stage="12",
)  # fmt: skip
def zero_of_0_12_verified(job: Job) -> None:
    _verified(job, load_optimizer_states=False, load_lr_scheduler_states=False)


@scenario(
    "after each step a checkpoint is verified by loading it without the schedule's states", pinned=[{}], stage="012"
)
def verified_without_schedule(job: Job) -> None:
    _verified(job, load_lr_scheduler_states=False)


@scenario("after each step the module alone is loaded from a checkpoint, in fp32", precision=("fp32",), stage="0")
def module_verified(job: Job) -> None:
    _verified(job, load_module_only=True)


# which takes the fp32 weights from the rounded ones; half precision without ZeRO is what patches make right
@scenario(
    "with ZeRO the module alone is loaded from a checkpoint after each step",
    pinned=[{"stage": "3"}, {"stage": "1", "precision": "fp16"}], stage="123", **_WITHOUT,
)  # fmt: skip
def zero_module_verified(job: Job) -> None:
    _verified(job, _train_without_reference, load_module_only=True)


@scenario("after each step another engine loads the checkpoint, and is thrown away", pinned=[{"precision": "bf16"}])
def verified_by_another(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        if step % 2:
            job.save(engine, f"step{step}")
            other = job.engine(job.MLP(seed=1))
            job.load(other, f"step{step}", optimizer=step == 1)
            other.destroy()

    _train(job, call)


@scenario("a checkpoint that does not exist is loaded, and the job goes on", pinned=[{"stage": "3"}])
def missing_loaded(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        for directory, tag in ((job.tmp / "none", None), (job.tmp / "none", "missing")):
            try:
                engine.load_checkpoint(str(directory), tag=tag)
            except (OSError, AssertionError, IndexError, ValueError) as error:
                job.survived(f"step {step}", error)

    _train(job, call)


def _read(job: Job, engine: Any, label: str) -> None:
    utils = importlib.import_module("deepspeed.utils")
    job.bits(f"{label}: rates", str([float(rate) for rate in engine.get_lr()]))
    job.bits(f"{label}: norm", str(engine.get_global_grad_norm()))
    job.bits(f"{label}: stepped", engine.was_step_applied())
    job.bits(f"{label}: steps", f"{engine.global_steps} {engine.global_samples} {engine.micro_steps}")
    for name, parameter in engine.module.named_parameters():
        if job.stage:
            weight = utils.safe_get_full_fp32_param(parameter)
            job.bits(f"{label}: {name}", None if weight is None else weight.float())
    engine.train(engine.training)
    engine.module.to(job.device)


@scenario("after each step rates, norm, counts and weights are read, and the module moved to where it is")
def only_read(job: Job) -> None:
    _train(job, lambda engine, step: _read(job, engine, f"step {step}"))


@scenario("after each step all gradients are discarded, in each way", pinned=[{"stage": "1"}, {"stage": "3"}])
def zeroed_after_a_step(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        engine.zero_grad()
        engine.module.zero_grad()
        engine.optimizer.zero_grad()
        for parameter in engine.module.parameters():
            parameter.grad = None

    _train(job, call)


def _loaded_from_itself(job: Job, engine: Any) -> None:
    module = {name: each.clone() for name, each in engine.module_state_dict().items()}
    engine.load_module_state_dict({"module": module} if _takes_checkpoint(engine) else module)
    if job.stage == 0:
        engine.optimizer.load_state_dict(_copied(job, engine.optimizer.state_dict()))
    elif job.stage < 3:
        engine.optimizer.state_dict()


def _takes_checkpoint(engine: Any) -> bool:
    return "checkpoint" in engine.load_module_state_dict.__code__.co_varnames


def _copied(job: Job, state: Any) -> Any:
    if isinstance(state, job.torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copied(job, each) for key, each in state.items()}
    return type(state)(_copied(job, each) for each in state) if isinstance(state, (list, tuple)) else state


@scenario(
    "after each step the module, and without ZeRO the optimizer, are loaded from their own state_dict()",
    pinned=[{"precision": "fp16"}, {"precision": "bf16"}, {"stage": "2", "precision": "bf16"}], stage="012",
)  # fmt: skip
def loaded_from_itself(job: Job) -> None:
    _train(job, lambda engine, step: _loaded_from_itself(job, engine))


@scenario(
    "after each step the weights are written for publishing",
    pinned=[{"stage": "3", "precision": "bf16"}, {"stage": "1"}],
)
def published(job: Job) -> None:
    gathered = {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}} if job.stage == 3 else {}

    def call(engine: Any, step: int) -> None:
        engine.save_16bit_model(str(job.tmp / "published"))
        if job.stage == 3:
            engine._zero3_consolidated_16bit_state_dict()
        if job.rank == 0:
            written = job.torch.load(job.tmp / "published" / "pytorch_model.bin")
            job.bits(f"step {step}: written", job.torch.cat([written[name].flatten() for name in sorted(written)]))

    _train(job, call, **gathered)


# DeepSpeed has this for ZeRO-3, and some releases for ZeRO-1 and ZeRO-2
@scenario(
    "after each step states are moved to the host and back, of all kinds and of each",
    pinned=[{"stage": "3", "precision": "bf16"}, {"stage": "3", "partitioning": "all"}], stage="123", offload=("none",),
)  # fmt: skip
def moved_and_back_by_kinds(job: Job) -> None:
    def call(engine: Any, step: int) -> None:
        if not hasattr(engine, "offload_states"):
            return
        kinds = list(importlib.import_module("deepspeed.runtime.zero.offload_config").OffloadStateTypeEnum)
        try:
            engine.offload_states(**({"include": [kinds[step - 1]]} if 0 < step <= len(kinds) else {}))
            engine.reload_states()
        except (AssertionError, RuntimeError, ValueError, AttributeError) as error:
            job.survived(f"step {step}", error)

    _train(job, call)


@scenario("within a round everything is read, written and evaluated", accumulation=_SEVERAL, pinned=[
    {"stage": stage, "accumulation": "2", "precision": "bf16"} for stage in "0123"
])  # fmt: skip
def called_within_a_round(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch))
            engine.step()
            if not job.plain and micro == 0:
                _read(job, engine, f"step {step}")
                job.save(engine, f"step{step}")
                engine.eval()
                with job.torch.no_grad():
                    job.loss(engine, job.batch(500 + step))
                engine.train()
                if job.stage < 3:
                    engine.module_state_dict()
        job.look(engine, f"step {step}")
