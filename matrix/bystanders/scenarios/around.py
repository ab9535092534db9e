"""Around the training: resumed schedules, custom optimizers, contents of checkpoints and caches."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_SGD: Any = {"precision": ("fp32",), "optimizer": ("SGD", "client's SGD")}
_RATE = 0.05  # the setting's
_WARMUP = {"warmup_min_lr": 0.0, "warmup_max_lr": _RATE, "warmup_num_steps": 2, "warmup_type": "linear"}
_RATES = (0.0, 0.0, _RATE / 2)  # and its rate from then on: the engine steps the schedule after the optimizer


def _warmup_resumed(job: Job, **config: Any) -> None:
    """The script sets the first step's rate itself, because old releases do not."""
    schedule: Any = {"scheduler": {"type": "WarmupLR", "params": _WARMUP}}
    engine = job.engine(job.MLP(), **schedule, **config)
    for step in range(6):
        if step == 4:
            job.save(engine, "four")
            engine = job.engine(job.MLP(), **schedule, **config)
            job.load(engine, "four")
        if job.plain or step == 0:
            for group in engine.optimizer.param_groups:
                group["lr"] = [*_RATES, _RATE, _RATE, _RATE][step]
        job.train(engine, step)


@scenario("training with DeepSpeed's warm-up is resumed from a checkpoint", **_SGD)
def warmup_resumed(job: Job) -> None:
    _warmup_resumed(job)


@scenario(
    "training with DeepSpeed's warm-up is resumed from a checkpoint without learning rates: elastic_checkpoint",
    stage="12",
    pinned=[{"stage": "1"}],
    **_SGD,
)
def warmup_resumed_elastic(job: Job) -> None:
    _warmup_resumed(job, zero_optimization={"elastic_checkpoint": True})


@scenario("DeepSpeed's warm-up is recreated by hand for an existing optimizer", stage="0", **_SGD)
def warmup_by_hand_resumed(job: Job) -> None:
    engine = job.engine(job.MLP())
    schedule: Any = None
    for step in range(5):
        if not job.plain and step == 2:
            make = importlib.import_module("deepspeed.runtime.lr_schedules").WarmupLR
            schedule = make(engine.optimizer, **_WARMUP)
            schedule.load_state_dict({"last_batch_iteration": 7})
        job.train(engine, step)
        if schedule:
            schedule.step()


@scenario(
    "a third-party optimizer without state trains, and checkpoints are written",
    stage="0",
    precision=("fp16", "bf16"),
    optimizer=("client's SGD",),
    pinned=[{"stage": "0", "precision": "fp16", "optimizer": "client's SGD"}],
)
def optimizer_without_state(job: Job) -> None:
    class Momentum:
        def __init__(self, parameters: list[Any]) -> None:
            self.param_groups: Any = [{"params": parameters, "lr": _RATE}]
            self.moments: dict[int, Any] = {}

        def __call__(self, parameters: Any) -> Any:  # DeepSpeed accepts a third-party optimizer only as a callable
            return self

        def step(self, closure: Any = None) -> None:
            for number, parameter in enumerate(self.param_groups[0]["params"]):
                if parameter.grad is not None:
                    moment = self.moments.setdefault(number, job.torch.zeros_like(parameter))
                    moment.mul_(0.9).add_(parameter.grad)
                    parameter.data.add_(moment, alpha=-self.param_groups[0]["lr"])

        def zero_grad(self, set_to_none: bool = True) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

        def state_dict(self) -> dict[str, Any]:
            return {"moments": self.moments}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.moments = state["moments"]

    engine = job.engine(job.MLP(), optimizer=Momentum)  # type: ignore[arg-type]
    for step in range(3):
        job.train(engine, step)
        job.save(engine, f"step{step}")


@scenario(
    "the optimizer's state cannot be serialized, and the script survives the failed checkpoint",
    reference=False,
    stage="0",
    precision=("bf16", "fp16"),
    optimizer=("client's SGD",),
    pinned=[{"stage": "0", "precision": "bf16", "optimizer": "client's SGD"}],
)
def state_not_to_be_told(job: Job) -> None:
    class Untold(job.torch.optim.SGD):  # type: ignore[name-defined,misc]
        def state_dict(self) -> Any:
            raise RuntimeError("cannot be told")

    engine = job.engine(job.MLP(), optimizer=lambda given: Untold(given, lr=_RATE))
    for step in range(2):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        try:
            job.save(engine, f"step{step}")
        except RuntimeError as error:
            job.survived("save", error)
        job.torch.distributed.barrier()  # rank 0 has written
        job.bits(f"step {step}: weights", (job.tmp / "checkpoint" / f"step{step}/mp_rank_00_model_states.pt").is_file())


@scenario(
    "Muon with parameter groups that repeat the config in other words",
    reference=False,
    stage="12",
    precision=("fp32", "bf16"),
    optimizer=("SGD",),
    pinned=[{"stage": "1"}],
)
def muon_groups_as_the_config(job: Job) -> None:
    model = job.MLP()
    if hasattr(job.torch, "compiler") and hasattr(job.torch.compiler, "set_stance"):
        job.torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    groups = [
        {"params": list(model.blocks[0].parameters()), "betas": (0.9, 0.95), "weight_decay": 0.01},
        {"params": [*model.blocks[1].parameters(), *model.head.parameters()], "eps": 1e-10, "lr": _RATE},
    ]
    muon = {"type": "Muon", "params": {"lr": _RATE, "weight_decay": 0.01, "betas": [0.9, 0.95], "torch_adam": True}}
    config = {**space.config(job.setting), "optimizer": muon}
    config["zero_optimization"] = {**config["zero_optimization"], "reduce_scatter": False}  # muon_reduce_scatter
    engine = job._lab.initialize(model, config, model_parameters=groups)
    job.bits("groups", len(engine.optimizer.param_groups))
    for step in range(2):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


@scenario(
    "the error buffers of ZeRO++ LoCo follow the loss scale, up and down",
    reference=False,
    stage="3",
    precision=("fp16",),
    pinned=[{"stage": "3", "precision": "fp16"}],
)
def loco_errors(job: Job) -> None:
    """Stand-ins for what its kernels leave on the parameters."""
    engine = job.engine(job.MLP(), fp16={"loss_scale_window": 2})
    for step in range(6):
        for parameter in engine.module.parameters():
            if not hasattr(parameter, "intra_ef_buf"):
                parameter.intra_ef_buf = [None, job.torch.ones(1, device=job.device)]
                parameter.inter_ef_buf = [None, job.torch.ones(1, device=job.device)]
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch) * (float("inf") if step == 4 else 1.0))
            engine.step()
        kept = [parameter.intra_ef_buf[1].item() for parameter in engine.module.parameters() if _has_errors(parameter)]
        job.bits(f"step {step}: errors", job.torch.tensor(kept))


def _has_errors(parameter: Any) -> bool:
    return hasattr(parameter, "intra_ef_buf")


_ALONE: Any = {"reference": False, "stage": "0", "ranks": ("1",), "precision": ("fp32",), "pinned": [{"ranks": "1"}]}


@scenario("an image ships a compiled operator, and compiling no longer works", **_ALONE)
def operator_of_an_image(job: Job) -> None:
    directory = job.tmp / "torch_extensions" / _of_torch(job) / "lab"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "lab.so").write_text("compiled")
    job.bits("operator", _load(job, compiles=False))


@scenario(
    "three environments with the same torch version: one without CUDA, two with different CUDA versions", **_ALONE
)
def operators_of_three_environments(job: Job) -> None:
    seen = set()
    for cuda in (None, "11.8", "12.1"):
        with mock.patch.object(job.torch, "__version__", "2.3.1"), mock.patch.object(job.torch.version, "cuda", cuda):
            seen.add(_load(job, compiles=True))
    job.bits("directories", len(seen))


def _of_torch(job: Job) -> str:
    extension = importlib.import_module("torch.utils.cpp_extension")
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(job.tmp)}):
        os.environ.pop("TORCH_EXTENSIONS_DIR", None)
        return str(os.path.basename(os.path.dirname(extension._get_build_directory("lab", False))))


def _load(job: Job, compiles: bool) -> str:
    """The directory in which DeepSpeed finds an operator, with a stand-in for torch's compilation."""
    builder = importlib.import_module("deepspeed.ops.op_builder.builder")
    extension = importlib.import_module("torch.utils.cpp_extension")
    source = job.tmp / "lab.cpp"
    source.write_text("")

    class Operator(builder.OpBuilder):  # type: ignore[misc,name-defined]
        def absolute_name(self) -> str:
            return str(self.name)

        def sources(self) -> list[str]:
            return [str(source)]

    def load(name: str, build_directory: str | None = None, **options: Any) -> str:
        directory = build_directory or extension._get_build_directory(name, False)
        if not compiles and not os.path.exists(os.path.join(directory, f"{name}.so")):
            raise RuntimeError(f"Error building extension '{name}'")
        return str(directory)

    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(job.tmp)}), mock.patch.object(extension, "load", load):
        os.environ.pop("TORCH_EXTENSIONS_DIR", None)
        builder.OpBuilder._loaded_ops.pop("lab", None)
        return str(os.path.relpath(Operator(name="lab").jit_load(verbose=False), job.tmp))
