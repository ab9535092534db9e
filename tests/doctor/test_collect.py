"""collect() in broken environments returns facts and does not raise; programs that fail, hang or crash."""

import json
import os
import signal
import subprocess
import sys

import pytest

from dsfix.doctor import facts, programs
from dsfix.doctor.facts import collect
from dsfix.doctor.programs import run_program

LIMITS = {"import_seconds": 2.0, "program_seconds": 1.0}


def script(path, body):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


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
    script(tmp_path / "bin" / "nvidia-smi", body)
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
    secrets = dict.fromkeys(("DS_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY"), "s3cret")
    results = look(NCCL_DEBUG="INFO", DSFIX_SKIP="a", DS_ACCELERATOR="cpu", **secrets)
    assert results.variables == {"NCCL_DEBUG": "INFO", "DSFIX_SKIP": "a", "DS_ACCELERATOR": "cpu"}
    assert "s3cret" not in json.dumps(results.as_json())


def test_prefixes_and_names_do_not_overlap():
    assert not [name for name in facts.VARIABLES if name.startswith(facts.PREFIXES)]


def test_no_report_is_written_by_the_probes(tmp_path, site, look):
    (site / "torch.py").write_text("raise ImportError('no')\n")
    look(DSFIX_REPORT=str(tmp_path / "reports"))
    assert not (tmp_path / "reports").exists()


def test_output_and_status(tmp_path):
    answer = run_program([script(tmp_path / "program", "echo one; echo two >&2; exit 3")], 20)
    assert (answer.output, answer.errors, answer.status, answer.problem) == ("one\n", "two\n", 3, "")


@pytest.mark.parametrize(("content", "mode"), [(b"#!/bin/sh", 0o644), (b"\x7fELF\x02junk", 0o755), (None, 0)])
def test_a_program_that_cannot_be_run(tmp_path, content, mode):
    """Not executable; for a different architecture; missing."""
    path = tmp_path / "nvidia-smi"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    answer = run_program([str(path)], 20)
    assert answer.problem.startswith("nvidia-smi cannot be run: ")
    assert answer.first_line == answer.problem


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path):
    started = tmp_path / "pid"
    answer = run_program([script(tmp_path / "nvidia-smi", f"echo begun; sleep 1000 & echo $! > {started}; wait")], 1)
    assert answer.timed_out
    assert answer.output == "begun\n"
    assert answer.problem == "nvidia-smi did not finish within 1 s"
    state = subprocess.run(["ps", "-o", "stat=", "-p", started.read_text().strip()], capture_output=True, text=True)
    assert state.stdout.strip()[:1] in ("", "Z")  # gone, or not reaped yet


def test_a_program_with_endless_output(tmp_path):
    answer = run_program([script(tmp_path / "program", "exec yes")], 60)
    assert len(answer.output) < 4 << 20
    assert not answer.timed_out
    assert "SIGKILL" in answer.problem


def test_a_program_that_crashes(tmp_path):
    answer = run_program([script(tmp_path / "program", "kill -SEGV $$")], 20)
    assert answer.status == -signal.SIGSEGV
    assert answer.problem == "program was killed by SIGSEGV"


def test_junk(tmp_path):
    answer = run_program([script(tmp_path / "program", r"printf '\377\000\033[1m\n  \n words\n'")], 20)
    assert programs.first_line(answer.output.partition("\n")[2]) == "words"


def test_standard_input(tmp_path):
    (tmp_path / "program.py").write_text("import sys; print(sys.argv)")
    with open(tmp_path / "program.py", "rb") as program:
        assert run_program([sys.executable, "-", "x"], 60, stdin=program).output == "['-', 'x']\n"
