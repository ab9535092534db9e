"""Checkpoints and programs beside the training, in scripts that work around a bug."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any
from unittest import mock

from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import (
    around_zero3,
    checkpoints,
    experts,
    forward_passes,
    launchers,
    schedules,
    universal,
)
from matrix.bystanders.scenarios.around_zero3 import _one
from matrix.bystanders.space import one_job

_WHOLE_FILES = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


def _after_load(job: Job, then: Callable[[Any], None]) -> Any:
    """What the script does to an engine after each load of a checkpoint."""

    def wrap(load: Any) -> Any:
        def load_and_do(self: Any, *given: Any, **options: Any) -> Any:
            found = load(self, *given, **options)
            then(self)
            return found

        return load_and_do

    return around_zero3._replaced(job, "deepspeed.runtime.engine", "DeepSpeedEngine.load_checkpoint", wrap)


def _by_number(names: Any) -> list[str]:
    return sorted(names, key=lambda name: [int(each) for each in re.findall(r"\d+", os.path.basename(name))])


@scenario("the converter's lists of files are sorted by the numbers in their names")
@settings(
    works_around=("universal_checkpoint_rank_order", "universal_checkpoint_fragment_order"),
    release="0.13.1",
    **one_job(stage="1", optimizer="AdamW"),
)
def converted_by_number(job: Job) -> None:
    if job.plain:
        universal.converted_to_universal(job)
        return
    tool, files = (
        importlib.import_module(f"deepspeed.checkpoint.{each}") for each in ("ds_to_universal", "zero_checkpoint")
    )
    listed = files.get_zero_files
    with (
        mock.patch.object(tool, "sorted", _by_number, create=True),
        mock.patch.object(files, "get_zero_files", lambda folder: _by_number(listed(folder))),
    ):
        universal.converted_to_universal(job)


@scenario("a universal checkpoint, after whose load the frozen weights and buffers are loaded by hand")
@settings(works_around=("universal_checkpoint_leaves_frozen",), **one_job(stage="2", optimizer="AdamW"))
def frozen_loaded_by_hand(job: Job) -> None:
    def make(seed: int, config: Any) -> Any:
        model = job.MLP(seed=seed)
        model.blocks[0].requires_grad_(False)
        return job.engine(model, [each for each in model.parameters() if each.requires_grad], **config)

    def load(engine: Any) -> None:
        file = job.tmp / "checkpoint" / "two" / "mp_rank_00_model_states.pt"
        engine.module.load_state_dict(job.torch.load(file, weights_only=False)["module"])

    with _after_load(job, load):
        universal._universal(job, make)


@scenario("after the load of a universal checkpoint each group gets its weight decay, each state its own count")
@settings(
    works_around=("universal_checkpoint_param_groups", "universal_checkpoint_shared_step"),
    **one_job(stage="3", optimizer="AdamW"),
)
def groups_restored_by_hand(job: Job) -> None:
    def make(seed: int, config: Any) -> Any:
        model = job.MLP(seed=seed)
        groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters())}]
        return job.engine(model, [{**each, "weight_decay": decay} for each, decay in zip(groups, (1.0, 0.0))], **config)

    def restore(engine: Any) -> None:
        optimizer = engine.optimizer.optimizer
        for group, decay in zip(optimizer.param_groups, (1.0, 0.0)):
            group["weight_decay"] = decay
        for state in optimizer.state.values():
            state["step"] = state["step"].clone()

    with _after_load(job, restore):
        universal._universal(job, make)


@scenario("one sub-group under ZeRO-3, on machines of one device each, and a load with the rank for the local one")
@settings(
    works_around=(
        "universal_checkpoint_subgroups",
        "universal_checkpoint_load_subgroups",
        "universal_checkpoint_local_rank",
    ),
    release="0.17.6",
    **one_job(stage="3", optimizer="AdamW"),
)
def one_sub_group_on_two_machines(job: Job) -> None:
    def ranked(load: Any) -> Any:
        def load_by_rank(self: Any, *given: Any, **options: Any) -> Any:
            comm = importlib.import_module("deepspeed.comm")
            machine = mock.patch.dict(os.environ, LOCAL_RANK="0")
            with machine, mock.patch.object(comm, "get_local_rank", comm.get_rank):
                return load(self, *given, **options)

        return load_by_rank

    one: Any = {"zero_optimization": {"sub_group_size": 10**9}}
    with around_zero3._replaced(job, "deepspeed.runtime.engine", "DeepSpeedEngine.load_checkpoint", ranked):
        universal._universal(job, lambda seed, config: job.engine(job.MLP(seed=seed), **{**one, **config}))


@scenario("a job with an mpu sets the optimizer's count of steps after the load of a universal checkpoint")
@settings(works_around=("universal_checkpoint_step",), release="0.13.1", **one_job(stage="1", optimizer="AdamW"))
def count_set_by_hand(job: Job) -> None:
    def count(engine: Any) -> None:
        optimizer = engine.optimizer.optimizer
        for each in (*optimizer.param_groups, *optimizer.state.values()):
            if "step" in each:
                each["step"] = each["step"] * 0 + 2

    with mock.patch.dict(os.environ, _WHOLE_FILES), _after_load(job, count):
        universal._resumed(job, job.world_size, job.world_size)


@scenario("the script links weights and states again after the load of a universal checkpoint")
@settings(
    works_around=("universal_checkpoint_unlinks_fp32",), **one_job(stage="1", optimizer="AdamW", precision="bf16")
)
def linked_again(job: Job) -> None:
    def link(engine: Any) -> None:
        zero = engine.optimizer
        zero._link_all_hp_params()
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()

    with _after_load(job, link):
        universal._universal(job, lambda seed, config: job.engine(job.MLP(seed=seed), **config))


@scenario("buckets with experts are reduced without a further division")
@settings(works_around=("zero12_experts_bucket_divided_twice",), release="0.13.0", **one_job(stage="1"))
def divided_once(job: Job) -> None:
    undivided = lambda scatter: lambda self, *given, **options: scatter(self, *given, **{**options, "divide": False})  # noqa: E731
    zero = "deepspeed.runtime.zero.stage_1_and_2"
    with around_zero3._replaced(job, zero, "DeepSpeedZeroOptimizer.allreduce_and_scatter", undivided):
        experts._trained_apart(job, 1)


@scenario("experts on two ranks, whose weights are read from the parameters")
@settings(works_around=("zero12_experts_unlinked",), release="0.14.2", **one_job(stage="2"))
def experts_read_from_parameters(job: Job) -> None:
    experts._trained_apart(job, 2)


@scenario("experts on two of four ranks, with multi-rank buckets")
@settings(works_around=("zero12_experts_reduced_to_other_rank",), **one_job(stage="2", ranks="4"))
def shared_experts_in_multi_rank_buckets(job: Job) -> None:
    experts._trained_apart(job, 2)


@scenario("frozen weights and buffers are put from the model's state into the exported weights")
@settings(works_around=("zero1_to_fp32_leaves_out_frozen", "zero_to_fp32_integer_buffers"), **one_job(stage="1"))
def rest_exported_by_hand(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].requires_grad_(False)
    model.register_buffer("ids", job.torch.tensor([2**24 + 1, 5]))
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    job.train(engine, 0)
    job.save(engine, "two")
    written: dict[str, Any] = {}
    if job.plain:
        written = {**job.parameters(engine), "ids": model.ids}
    else:
        job.torch.distributed.barrier()
        if job.rank == 0:
            written = checkpoints._converted(job)
            saved = job.torch.load(job.tmp / "checkpoint" / "two" / "mp_rank_00_model_states.pt", weights_only=False)
            trained = {name for shapes in saved["param_shapes"] for name in shapes}
            written.update({name: each for name, each in saved["module"].items() if name not in trained})
    for name, weight in sorted(written.items()):
        job.note(f"written: {name}", str(weight.tolist()) if name == "ids" else weight)


@scenario("torch.load is told by the environment, or by the script, to unpickle")
@settings(works_around=("zero_to_fp32_weights_only",), release="0.15.4", **one_job(stage="2", ranks="1"))
def read_unpickled(job: Job) -> None:
    load = job.torch.load

    def whole(*args: Any, **options: Any) -> Any:
        return load(*args, weights_only=False, **options)

    for told in (mock.patch.dict(os.environ, _WHOLE_FILES), mock.patch.object(job.torch, "load", whole)):
        with told:
            checkpoints.exported_into_a_dict(job)


_FIRST: Any = {"stage": "1", "partitioning": "parameters persist"}
_BIAS = "e_score_correction_bias"


@scenario("jobs resume with torch.load that unpickles, and with DeepSpeed's classes declared safe")
@settings(works_around=("checkpoint_weights_only",), release="0.15.4", **_one(**_FIRST))
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


@scenario("torch's AdamW and elastic_checkpoint: numbers keep their shape, and the states are not loaded")
@settings(
    works_around=("elastic_checkpoint_scalar_step", "elastic_checkpoint_torch_adam"),
    **_one(**_FIRST, optimizer="AdamW"),
)
def elastic_without_states(job: Job) -> None:
    def sparing(lean: Any) -> Any:
        def split(self: Any, state: dict[str, Any], padding: int) -> dict[str, Any]:
            numbers = {key: each for key, each in state.items() if job.torch.is_tensor(each) and not each.dim()}
            return {**lean(self, {key: state[key] for key in state if key not in numbers}, padding), **numbers}

        return split

    method = "DeepSpeedZeroOptimizer._get_state_without_padding"
    with around_zero3._replaced(job, "deepspeed.runtime.zero.stage_1_and_2", method, sparing):
        job.resume(lambda seed: job.engine(job.MLP(seed=seed), **universal._ELASTIC), optimizer=False)


@scenario("hooks of recomputed blocks are removed from the parameters after each step")
@settings(works_around=("checkpoint_hooks_kept",), release="0.14.2", **_one(**{**_FIRST, "stage": "0"}))
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


@scenario("buffers are put back in fp32 after the engine's cast")
@settings(works_around=("half_rotary_frequencies", "half_routing_bias"), **_one(**_FIRST, precision="bf16"))
def buffers_put_back(job: Job) -> None:
    torch = job.torch

    class Router(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer(_BIAS, torch.tensor([8.0, 8.004, 8.012, 8.008]))  # all of them 8.0 in bf16

        def forward(self) -> Any:
            return getattr(self, _BIAS).argmax()

    attention = forward_passes._attention(job, forward_passes._rotary(job), forward_passes._FAR)
    scales = torch.nn.Parameter(torch.ones(4, 16))
    forward = lambda self, x: self.attention(x * self.scales[self.router()])  # noqa: E731
    model: Any = job.model(forward, attention=attention, router=Router(), scales=scales)
    model._keep_in_fp32_modules_strict = (_BIAS,)
    kept = {name: each.clone() for name, each in model.named_buffers()}
    engine = job.engine(model)
    for name, each in engine.module.named_buffers():
        each.data = kept[name].to(job.device)
    job.steps(engine, range(4))


@scenario("the script replaces auto in its config")
@settings(works_around=("auto_precision_dropped",), **one_job(ranks="1", precision="bf16", stage="1"))
def auto_replaced(job: Job) -> None:
    config: Any = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    config["bf16"]["enabled"], config["fp16"]["enabled"] = True, False
    engine = job.engine(job.MLP(), **config)
    job.steps(engine, range(3))


@scenario("the script writes its loss to DeepSpeed's monitor")
@settings(works_around=("monitor_train_loss",), **one_job(ranks="1", stage="2"))
def loss_written_by_script(job: Job) -> None:
    options = {"enabled": True, "output_path": str(job.tmp / "csv"), "job_name": "job"}
    engine = job.engine(job.MLP(), csv_monitor=options, steps_per_print=1)
    for step in range(3):
        for batch in job.batches(step):
            loss = job.loss(engine, batch)
            engine.backward(loss)
            engine.step()
        if not job.plain:
            engine.monitor.write_events([("Train/Samples/train_loss", loss.item(), engine.global_samples)])
    if not job.plain:
        (file,) = (job.tmp / "csv").rglob("Train_Samples_train_loss.csv")
        job.bits("written", file.read_text())
    job.look(engine, "trained")


@scenario("functions of torch are put back after the flops profiler")
@settings(works_around=("flops_profiler_leaves_wrappers",), **one_job(ranks="1"))
def put_back_after_the_profile(job: Job) -> None:
    torch = job.torch
    functional, tensor = torch.nn.functional, torch.Tensor
    known = functional.scaled_dot_product_attention, tensor.__matmul__, torch.bmm

    def forward(self: Any, x: Any) -> Any:
        x = self.below(x).tanh()[None]
        return self.head((x + functional.scaled_dot_product_attention(x, x, x)).tanh())[0]

    torch.manual_seed(0)
    model = job.model(forward, below=torch.nn.Linear(16, 16), head=torch.nn.Linear(16, 1))
    options = {"enabled": True, "profile_step": 1, "output_file": str(job.tmp / "profile")}
    engine = job.engine(model, flops_profiler=options)
    for step in range(4):
        job.train(engine, step)
        functional.scaled_dot_product_attention, tensor.__matmul__, torch.bmm = known


@scenario("the script saves and sets the random state of the samples that a curriculum draws")
@settings(works_around=("data_sampler_random_state",), reference=False, **one_job(ranks="1"))
def random_state_by_hand(job: Job) -> None:
    engine = schedules._engine(job)
    schedules._train(job, engine, range(2))
    state = engine.training_dataloader.data_sampler.np_rng.bit_generator.state
    job.save(engine, "two")
    engine = schedules._engine(job)
    job.load(engine, "two")
    engine.training_dataloader.data_sampler.np_rng.bit_generator.state = state
    schedules._train(job, engine, range(2, 4))


@scenario("the script sets the start method after the import")
@settings(works_around=("import_sets_start_method",), release="0.17.1", **one_job(ranks="1"))
def start_method_set(job: Job) -> None:
    multiprocessing.set_start_method("fork", force=True)
    engine = job.engine(job.MLP())
    job.steps(engine, range(2))
    with multiprocessing.Pool(1) as pool:
        job.note("start method", pool.apply(multiprocessing.get_start_method))


@scenario("mpirun is given a variable that the launcher does not know")
@settings(works_around=("launcher_exports_quoted",), release="0.16.0", **launchers._ALONE)
def variable_given_to_mpirun(job: Job) -> None:
    if job.plain:
        job.note("last", repr(["-x", "NCCL_DEBUG=INFO"]))
        return
    given = launchers._hosts(job, "--launcher", "openmpi", "--launcher_args", "-x NCCL_DEBUG=INFO")
    words = launchers._command(given, **launchers._MPI)
    last = max(index for index, word in enumerate(words) if word.startswith("NCCL_DEBUG="))
    job.note("last", repr(words[last - 1 : last + 1]))


@scenario("MPI's variables are set before the launcher starts")
@settings(works_around=("launcher_openmpi_environment",), release="0.18.3", **launchers._ALONE)
def variables_of_mpi_set(job: Job) -> None:
    expected = ["mpirun", "-n", "8", "-hostfile"]
    given = launchers._hosts(job, "--launcher", "openmpi")
    job.note("command", repr(expected if job.plain else launchers._command(given, **launchers._MPI)[:4]))


@scenario("the script to source on other machines is given with a semicolon")
@settings(works_around=("launcher_venv_script_export",), release="0.17.2", **launchers._ALONE)
def sourced_with_a_semicolon(job: Job) -> None:
    if job.plain:
        job.note("exported", repr(["UCX_ONE=1", "UCX_TWO=2"]))
        return
    script = job.tmp / "activate.sh"
    script.write_text("export FROM_SCRIPT=1\n")
    options = launchers._hosts(job, "--launcher", "pdsh", "--venv_script", f"{script};")
    words = launchers._command(options, UCX_ONE="1", UCX_TWO="2")
    line, _, _ = " ".join(words[words.index("-w") + 2 :]).partition("cd ")
    shell = subprocess.run(
        ["bash", "-c", f"{line}\nenv"], env={"PATH": "/bin:/usr/bin"}, capture_output=True, text=True
    )
    job.note("exported", repr(sorted(each for each in shell.stdout.splitlines() if each.startswith("UCX_"))))


@scenario("the autotuner's config begins with the section that has the tuned key")
@settings(works_around=("autotuning_nested_values",), **launchers._ALONE)
def tuned_section_first(job: Job) -> None:
    config = {"optimizer": {"params": {"lr": 0.1}}, "zero_optimization": {"stage": 2}}
    expected = ["--lr", "0.1"]
    job.note("passed", repr(expected if job.plain else launchers._passed(job, config, ["--lr", "0.5"])))


@scenario("operators have a directory of the environment's own")
@settings(works_around=("extension_cache_shared_by_versions",), **launchers._ALONE)
def directory_of_extensions_set(job: Job) -> None:
    extension = importlib.import_module("torch.utils.cpp_extension")
    if job.plain:
        return
    builder = importlib.import_module("deepspeed.ops.op_builder").UtilsBuilder()
    with mock.patch.dict(os.environ, {"TORCH_EXTENSIONS_DIR": str(job.tmp / "own")}):
        with mock.patch.object(extension, "load") as load:
            builder.jit_load(verbose=False)
        directory = load.call_args.kwargs.get("build_directory") or extension._get_build_directory("utils", False)
    job.bits("directory", str(directory).partition(str(job.tmp))[2])
