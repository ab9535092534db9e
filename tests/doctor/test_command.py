"""Programs that fail, hang or crash."""

import signal
import subprocess
import sys

import pytest

from dsfix.doctor import programs
from dsfix.doctor.programs import run_program


def script(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


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
