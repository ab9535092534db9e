"""`run`: a command and every Python process that it starts have dsfix; nothing else about them changes."""

import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from dsfix.cli import run as command_run
from dsfix.cli.exits import CommandError
from dsfix.start import DIRECTORY
from tests.processes import ended

# a job: imports DeepSpeed and prints the outcome of the patch
JOB = """\
import json, sys
import deepspeed.runtime.zero.stage3
dsfix = sys.modules.get("dsfix")
outcomes = {each.id: each.outcome.value for each in dsfix.report()} if dsfix else {}
print(json.dumps(outcomes.get("zero3_offload_clip_device")))
"""
CHILDREN = """\
import multiprocessing, os, subprocess, sys

def job():
    import job

if __name__ == "__main__":
    sys.stdout.flush()
    subprocess.run([sys.executable, "job.py"], check=True)
    for kind in ("spawn", "fork", "forkserver"):
        process = multiprocessing.get_context(kind).Process(target=job)
        process.start()
        process.join()
    os.execv(sys.executable, [sys.executable, "-m", "job"])
"""


@pytest.fixture
def job(environment):
    environment.install()
    for package in environment.directory.glob("deepspeed/**/__init__.py"):
        package.write_text("")
    (environment.directory / "job.py").write_text(JOB)
    (environment.directory / "children.py").write_text(CHILDREN)
    return environment


def run(job, *command, before=(sys.executable, "-m", "dsfix", "run"), **variables):
    return ended([*before, *command], job.directory, job.variables(**variables))


def outcomes(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def bare(directory):
    """The Python of an empty virtual environment."""
    venv.create(directory, symlinks=True)
    return str(directory / "bin" / "python")


@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "job.py"),
        (sys.executable, "./job.py"),
        (sys.executable, "-m", "job"),
        (sys.executable, "-c", "import job"),
        ("sh", "-c", f"{sys.executable} job.py"),
        ("--", "env", "A=1", sys.executable, "job.py"),
    ],
    ids=lambda command: " ".join(command).replace(sys.executable, "python"),
)
def test_python_has_dsfix(job, command):
    assert outcomes(run(job, *command)) == ["applied"]


def test_without_run_there_is_no_dsfix(job):
    assert outcomes(run(job, sys.executable, "job.py", before=())) == [None]


def test_children_have_dsfix(job):
    done = run(job, sys.executable, "children.py")
    assert outcomes(done) == ["applied"] * 5


def test_nested_runs_apply_once(job):
    nested = run(job, sys.executable, "-m", "dsfix", "run", sys.executable, "job.py")
    assert outcomes(nested) == ["applied"]
    assert nested.stderr.count("[dsfix]") == 1


def test_a_script_that_imports_dsfix_itself(job):
    done = run(job, sys.executable, "-c", "import dsfix, job")
    assert outcomes(done) == ["applied"]
    assert done.stderr.count("[dsfix]") == 1


def test_sys_path_changed_before_deepspeed_is_imported(job):
    elsewhere = job.directory / "elsewhere"
    elsewhere.mkdir()
    for name in ("deepspeed", "deepspeed-0.14.2.dist-info"):
        (job.directory / name).rename(elsewhere / name)
    assert outcomes(run(job, sys.executable, "-c", "import sys; sys.path.append('elsewhere'); import job")) == [
        "applied"
    ]


def test_find_spec_does_not_import_dsfix(job):
    look = (
        "import importlib.util, sys\n"
        "spec = importlib.util.find_spec('deepspeed')\n"
        "print('dsfix' in sys.modules, spec.origin, spec.loader.is_package('deepspeed'))\n"
    )
    done = run(job, sys.executable, "-c", look)
    assert done.stdout.split() == ["False", str(job.directory / "deepspeed" / "__init__.py"), "True"], done.stderr


def test_the_module_keeps_its_own_loader(job):
    code = "import deepspeed; print(type(deepspeed.__loader__).__name__, type(deepspeed.__spec__.loader).__name__)"
    assert run(job, sys.executable, "-c", code).stdout.split() == ["SourceFileLoader"] * 2


SHOW = "import json, os, sys; print(json.dumps([sys.path, sorted(os.environ.items())]))"


@pytest.mark.parametrize("path", ["", "first:second", ":second:"])
def test_the_rest_of_the_environment_is_unchanged(job, path):
    def show(*before):
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "ODD": "\udcff"}  # no locale: the C locale
        done = ended([*before, sys.executable, "-c", SHOW], job.directory, variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    path_with, with_dsfix = show(sys.executable, "-m", "dsfix", "run")
    path_without, without = show()
    expected = {**dict(without), "PYTHONPATH": f"{DIRECTORY}:{path}" if path else DIRECTORY}
    assert dict(with_dsfix) == expected
    assert path_with == path_without


@pytest.mark.parametrize("locale", [{}, {"LC_CTYPE": "C.UTF-8"}])
def test_variables_that_python_sets_for_itself_are_not_passed_on(locale):
    """In the C locale Python sets LC_CTYPE in its own environment."""
    variables = {"PATH": os.environ["PATH"], **locale}
    command = [sys.executable, "-m", "dsfix", "run", "env"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: value for name, value in seen.items() if name.startswith("LC_")} == locale


def test_other_customizations_are_loaded(job, base_python):
    (job.directory / "sitecustomize.py").write_text("print('site'); mine = 1\n")
    base = {"PYTHONUSERBASE": str(job.directory / "user")}
    where = [base_python, "-c", "import site; print(site.getusersitepackages())"]
    user = Path(ended(where, job.directory, {**os.environ, **base}).stdout.strip())
    user.mkdir(parents=True)
    (user / "usercustomize.py").write_text("print('user')\n")
    code = "import sys, sitecustomize; print(sitecustomize.mine, sitecustomize.__file__, '_dsfix_start' in sys.modules)"
    done = run(job, base_python, "-c", code, **base)
    first, *seen = done.stdout.split()  # the first is from the Python that runs `run`
    assert first == "site", done.stderr
    assert seen == ["site", "user", "1", str(job.directory / "sitecustomize.py"), "True"]


@pytest.mark.parametrize("error", ["raise ValueError('broken')", "import not_there"])
def test_a_failing_customization_is_reported_as_without_dsfix(job, error):
    (job.directory / "sitecustomize.py").write_text(f"{error}\n")
    without = run(job, sys.executable, "-c", "pass", before=())
    done = run(job, sys.executable, "job.py", before=(sys.executable, "-m", "dsfix", "run"))
    assert "Error in sitecustomize" in without.stderr
    others = [line for line in done.stderr.splitlines() if "[dsfix]" not in line]
    assert others == without.stderr.splitlines() * 2  # once from the Python that runs `run`
    assert outcomes(done) == ["applied"]


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_ignores_pythonpath_starts_without_dsfix(job, option):
    done = run(job, sys.executable, option, "-c", "import sys; print('_dsfix_start' in sys.modules)")
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_a_python_without_dsfix_uses_this_one(job, tmp_path_factory):
    import packaging

    (job.directory / "packaging").symlink_to(Path(packaging.__file__).parent)
    python = Path(bare(tmp_path_factory.mktemp("bare")))
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    (packages / "dsfix").mkdir()  # a namespace package, as in the parent directory of a clone
    done = run(job, python, "job.py")
    assert outcomes(done) == ["applied"]


def test_a_python_without_the_dependencies_of_dsfix_starts_with_one_warning(job, tmp_path_factory):
    python = bare(tmp_path_factory.mktemp("bare"))
    done = run(job, python, "job.py")
    assert outcomes(done) == [None]
    assert done.stderr.splitlines() == [
        f"[dsfix] WARNING: no patch is applied: {python} cannot import dsfix (ModuleNotFoundError: No module named "
        "'packaging'). Remedy: install dsfix for the Python of the job, 3.9 or newer"
    ]
    strict = run(job, python, "job.py", DSFIX_STRICT="1")
    assert strict.returncode == 1
    assert "No module named 'packaging'" in strict.stderr.splitlines()[-1]


def test_trouble_under_strict_fails_the_import(job):
    job.stage3.write_text(job.stage3.read_text().replace("clip * self.loss_scale", "self.loss_scale * clip"))
    assert "StrictError" in run(job, sys.executable, "job.py", DSFIX_STRICT="1").stderr.splitlines()[-1]
    assert outcomes(run(job, sys.executable, "job.py")) == ["drifted"]


def test_the_command_replaces_the_process(job):
    process = subprocess.Popen(
        [sys.executable, "-m", "dsfix", "run", "sh", "-c", "echo $$; read answer"],
        env=job.variables(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM


def test_the_exit_status_is_the_commands(job):
    assert run(job, "sh", "-c", "exit 7").returncode == 7


def test_a_broken_pipe_ends_the_command_quietly(job):
    """Python ignores SIGPIPE, and the command would inherit that."""
    done = run(job, "sh", "-c", "yes | head -1")
    assert (done.stdout, done.stderr) == ("y\n", "")


def test_commands_that_cannot_be_executed(job):
    def answer(*command, **variables):
        done = run(job, *command, **variables)
        return done.returncode, done.stderr.strip(), done.stdout

    (job.directory / "train.py").write_text("")
    (job.directory / "no.sh").write_text("#!/nowhere/sh\n")
    (job.directory / "plain.sh").write_text("echo $1\n")
    for script in ("no.sh", "plain.sh"):
        (job.directory / script).chmod(0o755)
    assert answer("nosuch") == (127, "dsfix: nosuch: command not found", "")
    assert answer("./nosuch")[0] == 127
    assert answer("train.py") == (
        127,
        "dsfix: train.py: command not found; run a script in this directory with `python train.py`",
        "",
    )
    name = Path(sys.executable).name
    results = answer(name, PATH="/nowhere")
    assert results == (127, f"dsfix: {name}: command not found; {sys.executable} is not on PATH", "")
    assert answer("./train.py") == (126, "dsfix: ./train.py: cannot be executed: Permission denied", "")
    assert answer("./no.sh")[0] == 126
    assert "interpreter" in answer("./no.sh")[1]
    assert answer("./plain.sh", "hello") == (0, "", "hello\n")  # as a shell does
    status, sentence, _ = answer()
    assert status == 2
    assert sentence.startswith("dsfix: run needs a command")


def test_windows_passes_on_environment_and_exit_status():
    words = ["sh", "-c", 'test "$PYTHONPATH" = first && exit 7']
    assert command_run._as_child(words, {**os.environ, "PYTHONPATH": "first"}) == 7


def test_windows_finds_batch_files(monkeypatch, tmp_path):
    """`deepspeed` is deepspeed.bat there, which CreateProcess does not find."""
    batch = tmp_path / "tool.bat"
    batch.write_text("#!/bin/sh\nexit $1\n")
    batch.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda command, path=None: {"tool": str(batch)}.get(command))
    assert command_run._as_child(["tool", "7"], dict(os.environ)) == 7
    with pytest.raises(CommandError, match=r"^nosuch: command not found"):
        command_run._as_child(["nosuch"], dict(os.environ))


@pytest.mark.parametrize(("status", "passed_on"), [(2**31 - 1, 2**31 - 1), (0xC0000005, 0xC0000005 - 2**32)])
def test_windows_statuses_beyond_31_bits(monkeypatch, status, passed_on):
    """sys.exit before Python 3.12.8 turns them into 0xFFFFFFFF; the negative number has the same 32 bits."""

    class Ended:
        def wait(self):
            return status

    monkeypatch.setattr("subprocess.Popen", lambda words, env: Ended())
    assert command_run._as_child(["train"], {}) == passed_on


INTERRUPTED = """\
import os, subprocess, sys
from dsfix.cli.run import _as_child

class Popen(subprocess.Popen):
    def wait(self, timeout=None):
        try:
            print("waits", flush=True)
            return super().wait(timeout)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            raise

subprocess.Popen = Popen
sys.exit(_as_child(["sh", "-c", "trap 'status=5' INT; echo ready; read one; read two; exit $status"], os.environ))
"""


def test_windows_leaves_an_interrupt_to_the_command():
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert {process.stdout.readline(), process.stdout.readline()} == {"ready\n", "waits\n"}
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    process.communicate("1\n2\n", timeout=300)
    assert process.returncode == 5
