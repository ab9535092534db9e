"""Launchers, monitors, the profiler, data and processes, in scripts that work around one of DeepSpeed's bugs."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import curricula, launchers

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


def _one(**levels: str) -> dict[str, Any]:
    """Stage 0 on one rank with these levels: one job."""
    setting = {**space.plain(), "stage": "0", "ranks": "1", **levels}
    return {"pinned": [setting], **{name: (level,) for name, level in setting.items()}}


@scenario("the script replaces auto in its config", works_around=("auto_precision_dropped",),
    **_one(precision="bf16", stage="1"))  # fmt: skip
def auto_replaced(job: Job) -> None:
    config: Any = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    config["bf16"]["enabled"], config["fp16"]["enabled"] = True, False
    engine = job.engine(job.MLP(), **config)
    for step in range(3):
        job.train(engine, step)


@scenario("the script writes its loss to DeepSpeed's monitor", works_around=("monitor_train_loss",),
    **_one(stage="2"))  # fmt: skip
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


@scenario("functions of torch are put back after the flops profiler", works_around=("flops_profiler_leaves_wrappers",),
    **_one())  # fmt: skip
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


@scenario("the script saves and sets the random state of the samples that a curriculum draws",
    works_around=("data_sampler_random_state",), reference=False, **_one())  # fmt: skip
def random_state_by_hand(job: Job) -> None:
    engine = curricula._engine(job)
    curricula._train(job, engine, range(2))
    state = engine.training_dataloader.data_sampler.np_rng.bit_generator.state
    job.save(engine, "two")
    engine = curricula._engine(job)
    job.load(engine, "two")
    engine.training_dataloader.data_sampler.np_rng.bit_generator.state = state
    curricula._train(job, engine, range(2, 4))


@scenario("the script sets the start method after the import", works_around=("import_sets_start_method",),
    release="0.17.1", **_one())  # fmt: skip
def start_method_set(job: Job) -> None:
    multiprocessing.set_start_method("fork", force=True)
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
    with multiprocessing.Pool(1) as pool:
        job.note("start method", pool.apply(multiprocessing.get_start_method))


@scenario("mpirun is given a variable that the launcher does not know", works_around=("launcher_exports_quoted",),
    release="0.16.0", **launchers._ALONE)  # fmt: skip
def variable_given_to_mpirun(job: Job) -> None:
    if job.plain:
        job.note("last", repr(["-x", "NCCL_DEBUG=INFO"]))
        return
    given = launchers._hosts(job, "--launcher", "openmpi", "--launcher_args", "-x NCCL_DEBUG=INFO")
    words = launchers._command(given, **launchers._MPI)
    last = max(index for index, word in enumerate(words) if word.startswith("NCCL_DEBUG="))
    job.note("last", repr(words[last - 1 : last + 1]))


@scenario("MPI's variables are set before the launcher starts", works_around=("launcher_openmpi_environment",),
    release="0.18.3", **launchers._ALONE)  # fmt: skip
def variables_of_mpi_set(job: Job) -> None:
    expected = ["mpirun", "-n", "8", "-hostfile"]
    given = launchers._hosts(job, "--launcher", "openmpi")
    job.note("command", repr(expected if job.plain else launchers._command(given, **launchers._MPI)[:4]))


@scenario("the script to source on other machines is given with a semicolon",
    works_around=("launcher_venv_script_export",), release="0.17.2", **launchers._ALONE)  # fmt: skip
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


@scenario("the autotuner's config begins with the section that has the tuned key",
    works_around=("autotuning_nested_values",), **launchers._ALONE)  # fmt: skip
def tuned_section_first(job: Job) -> None:
    config = {"optimizer": {"params": {"lr": 0.1}}, "zero_optimization": {"stage": 2}}
    expected = ["--lr", "0.1"]
    job.note("passed", repr(expected if job.plain else launchers._passed(job, config, ["--lr", "0.5"])))


@scenario("operators have a directory of the environment's own", works_around=("extension_cache_shared_by_versions",),
    **launchers._ALONE)  # fmt: skip
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
