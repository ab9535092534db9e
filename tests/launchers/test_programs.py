"""Bugs in processes that import no training script: launchers, the elastic agent, the autotuner, checkpoint tools."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from dsfix.catalogue import registry
from dsfix.lab.ranks import free_port

PROGRAMS = Path(__file__).with_name("programs")


def variables(release):
    """The variables with which this release is imported from its own directory."""
    directory = Path(sys.prefix, f"deepspeed-{release}")
    paths = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": paths, "LAUNCHER": str(directory / "bin" / "deepspeed"), "LOCAL_SIZE": "2"}


def symptom(patch_id, ended):
    return re.search(registry.catalogue()[patch_id].patch.symptom, ended.output)


def reports(directory):
    """The reports of all processes of a command: (program, id of each patch that was applied)."""
    for file in directory.iterdir():
        content = json.loads(file.read_text())
        yield content["argv"][0], {each["id"] for each in content["patches"] if each["outcome"] == "applied"}


def test_the_launcher(start, whole):
    environment = {**variables("0.15.1"), "CUDA_VISIBLE_DEVICES": "2,3"}
    command = (sys.executable, environment["LAUNCHER"], str(PROGRAMS / "who.py"))
    if whole:
        unpatched = start(*command, with_dsfix=False, **environment)
        assert unpatched.status != 0
        assert symptom("launcher_visible_devices", unpatched)

    below_run = start(*command, with_dsfix=True, **environment)
    assert below_run.status == 0
    for rank in "01":
        assert f"rank {rank}: True, devices 2,3" in below_run.output


def test_the_launcher_of_another_launcher(start, tmp_path, whole):
    """mpirun is a script here, which starts one rank with the variables that DeepSpeed's launcher exports."""
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("localhost slots=1\n")
    (tmp_path / "ompi_info").symlink_to("/bin/true")
    (tmp_path / "mpirun").symlink_to(PROGRAMS / "mpirun")
    binaries = os.path.dirname(sys.executable)
    environment = {"PATH": os.pathsep.join([str(tmp_path), binaries, os.environ["PATH"]])}
    options = ("--hostfile", str(hostfile), "--no_ssh_check", "--force_multi", "--master_addr", "localhost")
    command = ("deepspeed", *options, "--launcher", "openmpi", str(PROGRAMS / "who.py"))
    if whole:
        unpatched = start(*command, with_dsfix=False, **environment)
        assert unpatched.status != 0
        assert symptom("launcher_openmpi_environment", unpatched)

    below_run = start(*command, with_dsfix=True, **environment)
    assert below_run.status == 0
    assert "mpirun -n 1 -hostfile" in below_run.output
    assert "rank 0: True" in below_run.output


def test_the_autotuner(start, tmp_path):
    """It runs in the launcher's process; without a GPU it ends before its first experiment."""
    environment = {**variables("0.15.1"), "DSFIX_REPORT": str(tmp_path / "reports")}
    config = str(Path(__file__).parents[2] / "examples" / "ds_config.json")
    command = (sys.executable, environment["LAUNCHER"], "--autotuning", "tune", str(PROGRAMS / "who.py"))
    start(*command, "--deepspeed_config", config, with_dsfix=True, **environment)
    applied = {Path(program).name: ids for program, ids in reports(tmp_path / "reports")}
    assert "autotuning_nested_values" in applied["deepspeed"], applied.keys()


def test_the_elastic_agent(start, tmp_path, whole):
    """Its process is `python -m deepspeed.launcher.launch`. With this torch the agent itself fails later on."""
    environment = {**variables("0.14.2"), "DSFIX_REPORT": str(tmp_path / "reports")}
    options = ("--elastic_training", "--min_elastic_nodes", "1", "--max_elastic_nodes", "1", "--master_addr")
    command = (sys.executable, environment["LAUNCHER"], *options, "127.0.0.1", str(PROGRAMS / "who.py"))
    if whole:
        unpatched = start(*command, with_dsfix=False, **environment)
        assert symptom("torch_elastic_get_socket_with_port", unpatched)

    below_run = start(*command, with_dsfix=True, **environment)
    assert not symptom("torch_elastic_get_socket_with_port", below_run)
    # while Python looks for the module, argv[0] is -m
    agents = [ids for program, ids in reports(tmp_path / "reports") if Path(program).name in ("-m", "launch.py")]
    assert any("torch_elastic_get_socket_with_port" in ids for ids in agents)


@pytest.fixture(scope="session")
def saved(start, tmp_path_factory):
    """The directory of a checkpoint of 0.15.1, which is written without dsfix."""
    directory = tmp_path_factory.mktemp("checkpoint") / "saved"
    command = ("python", str(PROGRAMS / "save.py"), str(directory), str(free_port()))
    assert start(*command, with_dsfix=False, **variables("0.15.1")).status == 0
    return directory


@pytest.fixture
def checkpoint(saved, tmp_path):
    """A copy of it."""
    shutil.copytree(saved, tmp_path / "saved")
    return tmp_path / "saved"


def weight(file):
    """The only weight in a file that torch.load reads."""
    content = torch.load(file, weights_only=False)
    if isinstance(content, dict):
        content = content["param" if "param" in content else "weight"]
    return content


def test_the_copy_of_zero_to_fp32_in_a_checkpoint(start, checkpoint, whole):
    command = ("python", str(checkpoint / "zero_to_fp32.py"), str(checkpoint), str(checkpoint / "fp32.bin"))
    if whole:
        unpatched = start(*command, with_dsfix=False, **variables("0.15.1"))
        assert unpatched.status != 0
        assert symptom("zero_to_fp32_weights_only", unpatched)

    below_run = start(*command, with_dsfix=True, **variables("0.15.1"))
    assert below_run.status == 0
    assert "another release" not in below_run.output
    assert torch.equal(weight(checkpoint / "fp32.bin"), weight(checkpoint / "weight.pt"))


def test_ds_to_universal(start, checkpoint, whole):
    folders = ("--input_folder", str(checkpoint / "saved"), "--output_folder", str(checkpoint / "universal"))
    command = ("python", "-m", "deepspeed.checkpoint.ds_to_universal", *folders)
    if whole:
        unpatched = start(*command, with_dsfix=False, **variables("0.15.1"))
        assert unpatched.status != 0
        assert symptom("universal_checkpoint_weights_only", unpatched)

    below_run = start(*command, with_dsfix=True, **variables("0.15.1"))
    assert below_run.status == 0
    converted = weight(checkpoint / "universal" / "zero" / "weight" / "fp32.pt")
    assert torch.equal(converted, weight(checkpoint / "weight.pt"))


def test_zero_to_fp32_without_integer_buffers(start, checkpoint):
    """It writes the same bytes as without zero_to_fp32_integer_buffers_in_0_19_7, in two parts and their index."""
    patch_id, written = "zero_to_fp32_integer_buffers_in_0_19_7", {}
    for skip in (patch_id, ""):
        output, directory = checkpoint / f"fp32-{skip}", checkpoint / f"reports-{skip}"
        environment = {**variables("0.19.7"), "DSFIX_SKIP": skip, "DSFIX_REPORT": str(directory)}
        command = ("python", "-m", "deepspeed.utils.zero_to_fp32", str(checkpoint), str(output))
        ended = start(*command, "--safe_serialization", "--max_shard_size", "1KB", with_dsfix=True, **environment)
        assert ended.status == 0
        assert any(patch_id in ids for _, ids in reports(directory)) == (not skip)
        written[skip] = {file.name: file.read_bytes() for file in output.iterdir()}
    assert len(written[""]) == 3
    assert written[patch_id] == written[""]


@pytest.mark.parametrize("with_dsfix", [False, True])
def test_integer_buffers_put_back_by_the_script(start, checkpoint, with_dsfix, whole):
    """Today's workaround for zero_to_fp32_integer_buffers_in_0_19_7 remains correct with it."""
    if not (with_dsfix or whole):
        pytest.skip("only with --whole")
    (held,) = (checkpoint / "saved").glob("mp_rank_*_model_states.pt")
    state = torch.load(held, weights_only=False)
    state["module"]["ids"] = torch.tensor([2**24 + 1, 5])
    state["buffer_names"].append("ids")
    torch.save(state, held)
    convert = "zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict"
    program = f"from deepspeed.utils import zero_to_fp32; {convert}('{checkpoint}', '{checkpoint}/fp32', None)"
    assert start("python", "-c", program, with_dsfix=with_dsfix, **variables("0.19.7")).status == 0
    (file,) = (checkpoint / "fp32").glob("*.bin")
    written = torch.load(file)
    assert (written["ids"].tolist() == [2**24 + 1, 5]) == with_dsfix
    written.update({name: state["module"][name] for name in state["buffer_names"]})
    torch.save(written, file)
    assert {name: each.dtype for name, each in torch.load(file).items()} == {
        "weight": torch.float32,
        "scale": torch.float64,
        "ids": torch.int64,
    }
    assert torch.equal(weight(file), weight(checkpoint / "weight.pt"))
