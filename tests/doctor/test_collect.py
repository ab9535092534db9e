"""collect() in broken environments: it returns facts and does not raise."""

import json
import os
import sys

import pytest

from dsfix.doctor import facts
from dsfix.doctor.facts import collect

LIMITS = {"import_seconds": 2.0, "program_seconds": 1.0}


def program(directory, name, body):
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def site(tmp_path):
    """A directory on PYTHONPATH for stand-ins of torch."""
    path = tmp_path / "site"
    path.mkdir()
    (path / "torch.py").write_text("raise ImportError('a stand-in')\n")  # importing the real one is slow
    return path


@pytest.fixture
def look(tmp_path, site):
    """Runs collect() on an empty root, with programs from one directory."""

    def run(**variables):
        root = tmp_path / "root"
        root.mkdir(exist_ok=True)
        environment = {"PATH": str(tmp_path / "bin"), "PYTHONPATH": str(site), "HOME": str(tmp_path), **variables}
        results = collect(root, {name: value for name, value in environment.items() if value is not None}, **LIMITS)
        json.dumps(results.as_json())
        return results

    return run


def test_an_old_driver_without_compute_cap(tmp_path, look):
    body = (
        'case "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'; exit 2;; esac\n'
        "echo '0, Tesla V100, GPU-a, 470.57.02, 16160, 0'"
    )
    program(tmp_path / "bin", "nvidia-smi", body)
    (gpu,) = look().accelerators.gpus
    assert (gpu.name, gpu.capability) == ("Tesla V100", "")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "ImportError: libcudart.so.12"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("import threading; threading.Event().wait()", "did not finish within 2 s"),
        ("import os; os._exit(7)", "the process exited with status 7"),
        ("raise SystemExit('license')", "SystemExit: license"),
        ("1 +", "SyntaxError"),
    ],
)
def test_torch_is_broken(site, look, code, why):
    (site / "torch.py").write_text(code + "\n")
    results = look().packages.torch_probe
    assert why in results.failed
    assert "\n" not in results.failed


def test_output_of_torch_is_not_parsed(site, look):
    (site / "torch.py").write_text("import os\nprint('hello')\nos.system('echo {}')\nraise ImportError('no')\n")
    assert look().packages.torch_probe.failed == "ImportError: no"


@pytest.mark.skipif(sys.platform == "win32", reason="no user ids on Windows")
def test_no_home(look, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)  # a container started with a user id it does not define
    results = look(HOME=None)
    assert results.extensions.root == ""
    assert "set HOME or TORCH_EXTENSIONS_DIR" in results.extensions.problem


def test_the_cache_is_a_file(tmp_path, look):
    (tmp_path / "cache").write_text("")
    results = look(TORCH_EXTENSIONS_DIR=str(tmp_path / "cache"))
    assert "Not a directory" in results.extensions.problem


def test_no_proc(look):
    results = look()
    assert (results.platform.wsl, results.memory.limit, results.memory.shm, results.infiniband) == (0, None, None, ())
    assert results.memory.total  # from sysconf


def test_only_listed_variables_are_shown(look):
    secrets = {
        "DS_API_KEY": "s3cret",
        "HF_TOKEN": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "WANDB_API_KEY": "s3cret",
    }
    results = look(NCCL_DEBUG="INFO", DSFIX_SKIP="a", DS_ACCELERATOR="cpu", **secrets)
    assert results.variables == {"NCCL_DEBUG": "INFO", "DSFIX_SKIP": "a", "DS_ACCELERATOR": "cpu"}
    assert "s3cret" not in json.dumps(results.as_json())


def test_prefixes_and_names_do_not_overlap():
    assert not [name for name in facts.VARIABLES if name.startswith(facts.PREFIXES)]


def test_no_report_is_written_by_the_probes(tmp_path, site, look):
    (site / "torch.py").write_text("raise ImportError('no')\n")
    look(DSFIX_REPORT=str(tmp_path / "reports"))
    assert not (tmp_path / "reports").exists()
