"""Training without ZeRO-3, in scripts that work around a bug."""

from __future__ import annotations

import functools
import importlib
import math
import os
import sys
from types import ModuleType
from typing import Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.space import one_job

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


@scenario("training with DeepSpeed's warm-up is resumed from a checkpoint without learning rates: elastic_checkpoint")
@settings(stage="12", pinned=[{"stage": "1"}], **_SGD)
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


@scenario("a third-party optimizer without state trains, and checkpoints are written")
@settings(
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


@scenario("the optimizer's state cannot be serialized, and the script survives the failed checkpoint")
@settings(
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


@scenario("Muon with parameter groups that repeat the config in other words")
@settings(reference=False, stage="12", precision=("fp32", "bf16"), optimizer=("SGD",), pinned=[{"stage": "1"}])
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


@scenario("the error buffers of ZeRO++ LoCo follow the loss scale, up and down")
@settings(reference=False, stage="3", precision=("fp16",), pinned=[{"stage": "3", "precision": "fp16"}])
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


@scenario("three environments with the same torch version: one without CUDA, two with different CUDA versions")
@settings(**_ALONE)
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


@scenario("weights are moved to the CPU before accelerate's function copies them, and training goes on")
@settings(works_around=("saving_copies_on_gpu",), release="0.15.4", **one_job(ranks="1", stage="2"))
def moved_before_saving(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        job.train(engine, step)
        weights = {name: weight.cpu() for name, weight in engine.module.state_dict().items()}
        if not job.plain:
            clone = importlib.import_module("deepspeed.checkpoint.utils").clone_tensors_for_torch_save
            weights = clone(weights)
        for name, weight in weights.items():
            job.note(f"step {step}: {name}", weight)


@scenario("the optimizer's state is in the checkpoint's client state, and the script puts it back")
@settings(works_around=("stage0_checkpoint_loses_optimizer",), release="0.18.3", **one_job(ranks="1", precision="bf16"))
def state_in_client_state(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(5):
        if step == 2:
            if job.plain:
                job.save(engine, "two")
                engine = job.engine(job.MLP(seed=1))
                job.load(engine, "two")
            else:
                client = {"states": engine.optimizer.state_dict()}
                engine.save_checkpoint(str(job.tmp), tag="two", client_state=client)
                engine = job.engine(job.MLP(seed=1))
                _, client = engine.load_checkpoint(str(job.tmp), tag="two")
                engine.optimizer.load_state_dict(client["states"])
            job.look(engine, "loaded")
        job.train(engine, step)


@scenario("the fp32 copies are renewed after a checkpoint is loaded without the optimizer's states")
@settings(works_around=("stage0_load_without_optimizer",), release="0.18.9", **one_job(ranks="1", precision="bf16"))
def copies_renewed(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(5):
        if step == 2:
            job.save(engine, "two")
            engine = job.engine(job.MLP(seed=1))
            job.load(engine, "two", optimizer=False)
            if not job.plain:
                engine.optimizer.refresh_fp32_params()
            job.look(engine, "loaded")
        job.train(engine, step)


@scenario("a group without parameters is left out of the optimizer, which has a schedule of PyTorch's")
@settings(works_around=("empty_group_scheduler",), **one_job(ranks="1", stage="2"))
def empty_group_left_out(job: Job) -> None:
    model = job.MLP()
    groups = [{"params": []}, {"params": list(model.parameters()), "lr": 0.05}]
    made: list[Any] = []

    def optimizer(given: Any) -> Any:
        made.append(job.torch.optim.SGD([group for group in given if group["params"]], lr=0.1))
        made.append(job.torch.optim.lr_scheduler.LambdaLR(made[0], lambda step: 0.5**step))
        return made[0]

    engine = job.engine(model, groups, optimizer=optimizer)
    for step in range(4):
        job.train(engine, step)
        made[1].step()
        job.note(f"step {step}: next rates", repr(made[1].get_last_lr()))


@scenario("names are cleared when an engine is destroyed, and another one is made for the model")
@settings(works_around=("engine_names_keep_model",), **one_job(ranks="1", stage="1"))
def names_cleared(job: Job) -> None:
    model = job.MLP()
    for first in (0, 3):
        engine = job.engine(model)
        job.steps(engine, range(first, first + 3))
        engine.destroy()
        if not job.plain:
            debug = importlib.import_module("deepspeed.utils.debug")
            debug.module_names.clear()
            debug.param_names.clear()


@scenario("the script sets the rate of the first step under a warm-up")
@settings(works_around=("warmup_first_step",), release="0.14.2", **one_job(ranks="1", stage="1"))
def first_rate_by_hand(job: Job) -> None:
    params = {"warmup_max_lr": space.SGD["lr"], "warmup_num_steps": 4, "warmup_type": "linear"}
    engine = job.engine(job.MLP(), scheduler={"type": "WarmupLR", "params": params})
    for step in range(5):
        if job.plain or step == 0:
            for group in engine.optimizer.param_groups:
                group["lr"] = space.SGD["lr"] * max(step - 1, 0) / 4
        job.train(engine, step)


@scenario("the script sets the rates of a cosine and behind its end itself")
@settings(works_around=("warmup_cosine_past_end",), **one_job(ranks="1", stage="1"))
def rates_behind_the_end_by_hand(job: Job) -> None:
    params = {"total_num_steps": 4, "warmup_num_steps": 2, "cos_min_ratio": 0.1}
    engine = job.engine(job.MLP(), scheduler={"type": "WarmupCosineLR", "params": params})
    for step in range(7):
        for group in engine.optimizer.param_groups:
            group["lr"] = space.SGD["lr"] * (1.0 if step < 4 else 0.1)
        job.train(engine, step)


@scenario("rates of Muon and of its Adam are set after the engine is made")
@settings(
    works_around=("muon_param_groups",),
    release="0.19.6",
    reference=False,
    **one_job(ranks="1", stage="1"),
)
def muon_rates_by_hand(job: Job) -> None:
    torch = job.torch
    torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    model = job.MLP()
    biases = [each for each in model.parameters() if each.ndim < 2]
    groups = [
        {"params": [each for each in model.parameters() if each.ndim > 1], "weight_decay": 0.01},
        {"params": biases, "weight_decay": 0.01},
    ]
    muon = {"type": "Muon", "params": {"lr": 0.1, "weight_decay": 0.01, "torch_adam": True}}
    whole = {**space.config(job.setting), "optimizer": muon}
    whole["zero_optimization"] = {**whole["zero_optimization"], "reduce_scatter": False}
    engine = job._lab.initialize(model, whole, model_parameters=groups)
    for group in engine.optimizer.param_groups:
        group["lr"] = 0.02 if group["use_muon"] else 0.01
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


_MUON_SCALED: Any = {
    "works_around": ("muon_fp16_divided_by_loss_scale", "muon_fp16_overflow_repeats"),
    "release": "0.18.9",
    "reference": False,
    **one_job(ranks="1", stage="1", precision="fp16", clipping="on"),
}


@scenario("Muon's learning rate is multiplied by the static loss scale", **_MUON_SCALED)
def muon_rate_scaled(job: Job) -> None:
    _muon_scaled(job, 8)


@scenario("Muon's learning rate is multiplied by the static loss scale, and is reached by WarmupLR", **_MUON_SCALED)
def muon_rate_scaled_and_warmed_up(job: Job) -> None:
    warmup = {"warmup_max_lr": [0.02 * 128, 0.02], "warmup_min_lr": [0.0, 0.0], "warmup_num_steps": 100}
    _muon_scaled(job, 128, scheduler={"type": "WarmupLR", "params": {**warmup, "warmup_type": "linear"}})


def _muon_scaled(job: Job, scale: int, **config: Any) -> None:
    torch = job.torch
    torch.compiler.set_stance("force_eager")  # the update is compiled on first use
    model = job.MLP()
    muon = {"type": "Muon", "params": {"lr": 0.02, "weight_decay": 0.0, "torch_adam": True}}
    whole = {**space.config(job.setting), "optimizer": muon, "fp16": {"enabled": True, "loss_scale": scale}, **config}
    whole["zero_optimization"] = {**whole["zero_optimization"], "reduce_scatter": False}
    engine = job._lab.initialize(model, whole, model_parameters=list(model.parameters()))
    for group in engine.optimizer.param_groups:
        if group["use_muon"]:
            group["lr"] *= scale
    for step in range(3):
        for batch in job.batches(step):
            engine.backward(job.loss(engine, batch))
            engine.step()
        for name, parameter in job.parameters(engine).items():
            job.bits(f"step {step}: {name}", parameter)


@scenario("FusedAdam, and the head, which is unfrozen later, is a group of its own")
@settings(works_around=("fused_adam_step_of_last",), release="0.18.9", **one_job(ranks="1", optimizer="client's AdamW"))
def head_in_own_group(job: Job) -> None:
    from dsfix.patches import _half as half

    kind: Any = job.torch.optim.AdamW
    if not job.plain:
        half.provide_fused_adam(job._lab)
        kind = importlib.import_module("deepspeed.ops.adam").FusedAdam
    model = job.MLP()
    groups = [{"params": list(part.parameters())} for part in (model.blocks, model.head)]
    engine = job.engine(model, groups, functools.partial(kind, **space.ADAM))
    for step in range(4):
        model.head.requires_grad_(step > 1)
        job.train(engine, step)


@scenario("a job of torch's AdamW resumes with offload, and the script tells the groups what DeepSpeed's Adam asks for")
@settings(
    works_around=("adam_resume_of_torch_adam",),
    release="0.18.9",
    **one_job(ranks="1", stage="2", optimizer="client's AdamW"),
)
def resumed_with_offload(job: Job) -> None:
    from dsfix.patches import _half as half

    engine = job.engine(job.MLP())
    job.steps(engine, range(2))
    job.save(engine, "two")
    kind: Any = job.torch.optim.AdamW
    if not job.plain:
        half.provide_cpu_adam(job._lab)
        kind = importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam
    offload = {"offload_optimizer": {"device": "cpu"}}
    engine = job.engine(job.MLP(seed=1), None, functools.partial(kind, **space.ADAM), zero_optimization=offload)
    job.load(engine, "two")
    if not job.plain:
        for group in engine.optimizer.param_groups:
            group["bias_correction"] = True
    job.steps(engine, range(2, 5))


@scenario("1-bit LAMB is given those parameters alone that have elements")
@settings(works_around=("onebit_lamb_empty_parameter",), release="0.18.3", reference=False, **one_job(ranks="1"))
def onebit_lamb_without_nothing(job: Job) -> None:
    sys.modules.setdefault("cupy", ModuleType("cupy"))  # nothing of it is used but its name
    model = job.model(lambda self, x: self.body(x) + self.nothing.sum(), body=job.MLP())
    model.register_parameter("nothing", job.torch.nn.Parameter(job.torch.ones(0, 8)))
    whole = {
        **space.config(job.setting),
        "optimizer": {"type": "OneBitLamb", "params": {"lr": 1e-3, "weight_decay": 0.01, "freeze_step": 2}},
    }
    initial = job._whole(model)
    engine = job._lab.initialize(model, whole, model_parameters=[each for each in model.parameters() if each.numel()])
    job._initial[id(engine)] = initial
    job.steps(engine, range(4))


def _train(job: Job, model: Any = None, parameters: Any = None, optimizer: Any = None, **config: Any) -> None:
    engine = job.engine(model or job.MLP(), parameters, optimizer, **config)
    job.steps(engine, range(4))


def _left_out(job: Job) -> None:
    """Each rank's loss is nan in one step, which all ranks leave out."""
    torch = job.torch
    engine = job.engine(job.MLP())
    for step in range(4):
        loss = job.loss(engine, job.batch(step)) * (math.nan if step == 1 and job.rank == 0 else 1.0)
        bad = (~torch.isfinite(loss.detach())).float()
        if not job.plain:
            torch.distributed.all_reduce(bad)
        if step == 1 or float(bad):
            continue
        engine.backward(loss)
        engine.step()
        job.look(engine, f"step {step}")


_SUMS = "bf16, fp32 accumulation"


@scenario("BF16_Optimizer: a batch whose loss is nan on one rank is left out on all")
@settings(works_around=("bf16_nonfinite_step_ends_job",), **one_job(stage="1", precision=_SUMS))
def nan_left_out_of_sums(job: Job) -> None:
    _left_out(job)


@scenario("ZeRO-Offload: a batch whose loss is nan on one rank is left out on all")
@settings(
    release="0.16.0", works_around=("zero12_offload_nonfinite_norm_long",), **one_job(stage="2", offload="optimizer")
)
def nan_left_out_of_offload(job: Job) -> None:
    _left_out(job)


@scenario("ZeRO-2 in bf16: a batch whose loss is nan on one rank is left out on all")
@settings(
    release="0.18.9",
    works_around=("zero12_norm_of_nonfinite_group",),
    **one_job(stage="2", precision="bf16", clipping="on"),
)
def nan_left_out_in_bf16(job: Job) -> None:
    _left_out(job)


@scenario("ZeRO-Offload with sums in fp32: a batch whose loss is nan on one rank is left out on all")
@settings(
    works_around=("zero12_offload_overflow_repeats",),
    release="0.19.8",
    **one_job(stage="1", offload="optimizer", precision="bf16"),
)
def nan_left_out_of_offloaded_sums(job: Job) -> None:
    _left_out(job)


def _added_up(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        loss = sum(job.loss(engine, job.batch(3 * step + micro)) / 3 for micro in range(3))
        engine.backward(loss)
        engine.step()
        job.look(engine, f"step {step}")


@scenario("losses of several forward passes are added up, for one backward pass")
@settings(
    stage="12",
    accumulation=("1",),
    works_around=(
        *("zero12_several_backwards_drop", "zero12_several_backwards_untold"),
        *("zero12_offload_several_backwards_drop", "zero12_offload_several_backwards_untold"),
        *("zero2_offload_several_backwards", "zero2_offload_several_backwards_untold"),
        "zero2_offload_accumulation_drops",
        "zero2_accumulation_drops_microbatches",
    ),
    ranks=("2",),
    precision=("fp32",),
    pinned=[{"stage": "2"}],
)
def several_losses_added_up(job: Job) -> None:
    _added_up(job)


@scenario("with fp32 gradients and optimizer offload, losses are added up, for one backward pass")
@settings(
    works_around=("zero1_second_backward_counts_first",),
    release="0.19.8",
    **one_job(stage="1", offload="optimizer", precision="bf16", ranks="2"),
)
def several_losses_added_up_offloaded(job: Job) -> None:
    engine = job.engine(job.MLP(), data_types={"grad_accum_dtype": "fp32"})
    for step in range(4):
        engine.backward(sum(job.loss(engine, job.batch(2 * step + micro)) / 2 for micro in range(2)))
        engine.step()
        job.look(engine, f"step {step}")


@scenario("without ZeRO losses are added up, for one backward pass")
@settings(works_around=("bf16_retain_graph_dropped",), release="0.16.0", **one_job(precision="bf16"))
def several_losses_added_up_without_zero(job: Job) -> None:
    _added_up(job)


@scenario("gradients are zeroed after each step, and the loss is multiplied by the optimizer's scale")
@settings(works_around=("bf16_stage0_no_update",), release="0.18.3", **one_job(precision="bf16", ranks="1"))
def zeroed_and_scaled_by_script(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        loss = job.loss(engine, job.batch(step))
        engine.backward(loss if job.plain else loss * engine.optimizer.loss_scale)
        engine.step()
        engine.zero_grad()
        job.look(engine, f"step {step}")


@scenario("gradients are added to the sums at once")
@settings(works_around=("bf16_zero1_last_microbatch_local",), **one_job(stage="1", precision=_SUMS, accumulation="2"))
def sums_at_once(job: Job) -> None:
    _train(job, bf16={"immediate_grad_update": True})


@scenario("the step has no gradients", works_around=("cpu_zero12_split_view",), **one_job(stage="1"))  # fmt: skip
def step_without_gradients(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        engine.backward(job.loss(engine, job.batch(step)))
        with job.torch.no_grad():
            engine.step()
        job.look(engine, f"step {step}")


@scenario("fp16 with torch's AdamW instead of DeepSpeed's")
@settings(
    works_around=("fp16_optimizer_never_steps",), release="0.17.6", **one_job(precision="fp16", optimizer="AdamW")
)
def adam_of_torch(job: Job) -> None:
    _train(job)


@scenario("fp16 with a scale that never changes")
@settings(
    works_around=("fp16_scale_growth_step", "fp16_zero1_overflow_deadlock"), **one_job(stage="1", precision="fp16")
)
def scale_that_stays(job: Job) -> None:
    _train(job, fp16={"loss_scale": 64.0, "loss_scale_window": 1})


@scenario("fp16 without ZeRO: the script computes the gradient norm itself")
@settings(works_around=("fp16_unfused_norm_scaled",), **one_job(precision="fp16", ranks="1"))
def norm_by_script(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        loss = job.loss(engine, job.batch(step))
        engine.backward(loss)
        scale = 1.0 if job.plain else engine.optimizer.loss_scale
        norm = job.torch.stack([each.grad.float().norm() for each in engine.module.parameters()]).norm() / scale
        job.note(f"step {step}: norm", norm)
        engine.step()
        job.look(engine, f"step {step}")


@scenario("Adagrad of torch, whose state the script clears, is saved")
@settings(works_around=("half_adagrad_checkpoint",), **one_job(precision="bf16", ranks="1"))
def adagrad_cleared(job: Job) -> None:
    def made(given: Any) -> Any:
        optimizer = job.torch.optim.Adagrad(given, lr=0.05, eps=1.0)
        if not job.plain:
            optimizer.state.clear()
        return optimizer

    engine = job.engine(job.MLP(), optimizer=made)
    job.steps(engine, range(2))
    job.save(engine, "two")


@scenario("Adagrad of torch with one group", works_around=("zero_adagrad_groups",), **one_job(stage="2"))  # fmt: skip
def adagrad_of_one_group(job: Job) -> None:
    _train(job, optimizer=lambda given: job.torch.optim.Adagrad(given, lr=0.05))


@scenario("the model returns clones of the parts of a tensor, of which one is used")
@settings(works_around=("several_outputs_of_one_node",), release="0.18.3", **one_job(stage="2", accumulation="2"))
def parts_cloned(job: Job) -> None:
    linear = job.torch.nn.Linear(16, 2)
    model = job.model(
        lambda self, x: tuple(each.clone() for each in self.head(self.body(x)).chunk(2, dim=1)),
        body=job.torch.nn.Linear(16, 16), head=linear,
    )  # fmt: skip
    engine = job.engine(model)
    job.steps(engine, range(3), lambda batch: job.loss(lambda inputs: engine(inputs)[0], batch))


@scenario("rates that are tensors are put back by the script")
@settings(
    works_around=(
        "tensor_learning_rate_made_number",
        "tensor_learning_rate_made_number_cosine",
        "tensor_learning_rate_replaced",
    ),
    **one_job(ranks="1", optimizer="client's SGD"),
)
def tensor_rates_put_back(job: Job) -> None:
    for kind, params in (
        ("WarmupLR", {"warmup_max_lr": 0.05, "warmup_num_steps": 4, "warmup_type": "linear"}),
        ("WarmupCosineLR", {"total_num_steps": 9, "warmup_num_steps": 3}),
    ):
        rate = job.torch.tensor(0.05, dtype=job.torch.float64)
        made = functools.partial(job.torch.optim.SGD, **{**space.SGD, "lr": rate, "foreach": False})
        engine = job.engine(job.MLP(), optimizer=made, scheduler={"type": kind, "params": params})
        group = engine.optimizer.param_groups[0]
        for step in range(4):
            if not job.plain and group["lr"] is not rate:
                rate.copy_(job.torch.as_tensor(group["lr"]).reshape(()))
                group["lr"] = rate
            job.bits(f"{kind}, step {step}: rate", float(rate))
            engine.backward(job.loss(engine, job.batch(step)))
            engine.step()


@scenario("parameters without elements are frozen")
@settings(works_around=("zero12_empty_parameter",), **one_job(stage="2", precision="bf16"))
def nothing_frozen(job: Job) -> None:
    model = job.model(lambda self, x: self.body(x) + self.nothing.sum(), body=job.MLP())
    model.register_parameter("nothing", job.torch.nn.Parameter(job.torch.ones(0, 8), requires_grad=False))
    _train(job, model)


@scenario("gradients are sent in the dtype of the parameters, in full buckets")
@settings(
    works_around=("zero12_full_bucket_dtype", "zero12_parameter_larger_than_bucket"),
    **one_job(stage="2", precision="bf16", buckets="small"),
)
def sent_as_they_are(job: Job) -> None:
    _train(job, communication_data_type="bf16")


@scenario("buckets are reduced without overlap")
@settings(
    works_around=(
        "zero12_overlap_bucket_refilled",
        "zero12_overlap_large_gradient_freed",
        "zero12_overlap_same_bucket",
    ),
    **one_job(stage="2", overlap_comm="false", buckets="small"),
)
def without_overlap(job: Job) -> None:
    _train(job)


@scenario("gradients of inputs are taken with the module, not with the engine")
@settings(works_around=("zero_gradients_of_inputs",), **one_job(stage="2"))
def inputs_through_the_module(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        inputs, targets = batch
        output = engine.module(inputs.requires_grad_()).float().square().mean()
        (gradient,) = job.torch.autograd.grad(output, inputs)
        return job.loss(engine, ((inputs + 0.1 * gradient).detach(), targets))

    job.steps(engine, range(4), loss)


@scenario("the script renews the fp32 weights after loading others")
@settings(works_around=("zero_load_without_optimizer",), release="0.12.2", **one_job(stage="2", precision="bf16"))
def weights_renewed(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(2))
    job.save(engine, "two")
    engine = job.engine(job.MLP(seed=1))
    job.load(engine, "two", optimizer=False)
    if not job.plain:
        engine.optimizer.refresh_fp32_params()
    for step in range(2, 4):
        job.bits(f"step {step}: loss", job.loss(engine, job.batch(step)))
        engine.backward(job.loss(engine, job.batch(step)))
        engine.step()
    for name, parameter in job.parameters(engine).items():
        job.bits(name, parameter)


@scenario("a scalar is in the group of the weights, so that no group is smaller than the number of ranks")
@settings(works_around=("zero12_group_smaller_than_ranks",), release="0.17.6", **one_job(stage="2", ranks="2"))
def scalar_in_large_group(job: Job) -> None:
    scale = job.torch.nn.Parameter(job.torch.ones(1))
    model: Any = job.model(lambda self, x: self.body(x) * self.scale, body=job.MLP(), scale=scale)
    weights = [each for each in model.body.parameters() if each.dim() > 1]
    biases = [each for each in model.body.parameters() if each.dim() < 2]
    job.steps(job.engine(model, [{"params": [*weights, scale]}, {"params": biases, "weight_decay": 0.0}]), range(3))


@scenario("a scale has one dimension, and transposed and channels_last weights are made contiguous")
@settings(works_around=("scalar_parameter_broadcast",), release="0.19.8", **one_job(stage="2", ranks="2"))
def parameters_contiguous(job: Job) -> None:
    nn = job.torch.nn
    weight = job.torch.arange(64.0).view(4, 16) / 64

    def forward(self: Any, x: Any) -> Any:
        pixels = self.convolution((x @ self.transposed)[:, :, None, None].expand(-1, -1, 2, 2))
        return pixels.flatten(1).mean(1, keepdim=True) * self.scale

    convolution = nn.Conv2d(4, 3, 2)
    with job.torch.no_grad():
        for parameter in convolution.parameters():
            parameter.fill_(0.1)
    convolution.to(memory_format=job.torch.channels_last).to(memory_format=job.torch.contiguous_format)
    scale = nn.Parameter(job.torch.ones(()).reshape(1))
    transposed = nn.Parameter(weight.t().contiguous())
    job.steps(job.engine(job.model(forward, transposed=transposed, convolution=convolution, scale=scale)), range(3))


@scenario("with two parameter groups the script links the optimizer's states after each step, and reads and sets them")
@settings(works_around=("zero12_states_of_first_group",), **one_job(stage="2", optimizer="AdamW", ranks="2"))
def states_linked_by_hand(job: Job) -> None:
    model = job.MLP()
    first, second = list(model.blocks.parameters()), list(model.head.parameters())
    engine = job.engine(model, [{"params": first}, {"params": second, "weight_decay": 0.1}])
    for step in range(3):
        job.train(engine, step)
        if not job.plain:
            engine.optimizer._hp_optimizer_states_linked = False
            engine.optimizer._lazy_init_hp_params_optimizer_state()
        _halve_states(job, engine, step, [*first, *second])


@scenario("with two parameter groups the states of the first are read and set after each step", stage="12")
@settings(optimizer=("AdamW", "client's AdamW"))
def first_states_set(job: Job) -> None:
    model = job.MLP()
    first, second = list(model.blocks.parameters()), list(model.head.parameters())
    engine = job.engine(model, [{"params": first}, {"params": second, "weight_decay": 0.1}])
    for step in range(3):
        job.train(engine, step)
        _halve_states(job, engine, step, first)


def _halve_states(job: Job, engine: Any, step: int, parameters: list[Any]) -> None:
    """The parameters' first moments are halved, with DeepSpeed's functions."""
    utils = importlib.import_module("deepspeed.utils")
    for number, parameter in enumerate(parameters):
        if job.plain:
            state = engine.optimizer.state[parameter]["exp_avg"]
            job.note(f"step {step}: exp_avg of parameter {number}", state)
            state.mul_(0.5)
        else:
            state = utils.safe_get_full_optimizer_state(parameter, "exp_avg")
            job.note(f"step {step}: exp_avg of parameter {number}", state)
            utils.safe_set_full_optimizer_state(parameter, state * 0.5, "exp_avg")
