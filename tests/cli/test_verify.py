"""`verify` with its own catalogue, whose bugs are in the standard library; torch and DeepSpeed are stand-ins."""

import json
import signal
import subprocess
import sys

import pytest

from tests.processes import Fifo

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the rank launcher runs on Linux")

PATCH = '''
"""A bug of the standard library, for the test."""
import json, os, signal, sys
from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Provide, Severity, Source

PATCH = Patch(
    title="no name", severity=Severity.CRASH, symptom="x",
    **{{"affects": {{"packaging": ">=1"}}, "changes": (Provide("json", {name!r}, lambda module: 1),), {options}}}
)

def reproduce(lab):
    missing = not hasattr(json, {name!r})
    {body}
    return "the name is there"
'''
BUG = "if missing: raise BugPresent('the name is missing')"
OLD = "'affects': {'packaging': '<0.1'}"
STAGE3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.step"
PATCHES = {
    "fixes": (BUG, ""),
    "does_not_fix": ("raise BugPresent('still there')", ""),
    "not_seen": ("", ""),
    "breaks_more": ("if not missing: raise BugPresent('worse')", ""),
    "needs_gpus": ("raise CannotTell('needs two GPUs')", ""),
    "raises": ("raise RuntimeError('another bug')", ""),
    "raises_with_it": ("raise BugPresent('seen') if missing else RuntimeError('another bug')", ""),
    "dies": ("print('Segmentation fault', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGSEGV)", ""),
    "pauses": ("signal.pause()", ""),
    # its module is never imported; the bug disappears for a different reason
    "gone_by_itself": (
        "if os.environ.get('DSFIX_SKIP'): raise BugPresent('seen')",
        "'changes': (Provide('colorsys', 'x', lambda module: 1),)",
    ),
    "one_rank_sees_it": (
        "if missing: raise BugPresent('seen on rank 1') if lab.rank == 1 else RuntimeError('no peer')",
        "'ranks': 2",
    ),
    "one_rank_waits": ("signal.pause() if lab.rank == 0 else os._exit(3)", "'ranks': 2"),
    "not_for_this": ("", OLD),
    "older_than_claimed": (BUG, OLD),
    "off_by_default": (BUG, "'default': False"),
    "drifted": (
        "raise BugPresent('seen')",
        f"'affects': {{'deepspeed': '>=0.14'}}, 'changes': (Edit({STAGE3!r}, 'pass', after='no_such_name = 1'),)",
    ),
    "kind": ("return f'nice {os.nice(0)}, {lab.world_size} ranks, {os.environ[\"OMP_NUM_THREADS\"]} threads'", ""),
}


@pytest.fixture
def verify(environment, dsfix_in):
    """Runs `verify` on the stand-in DeepSpeed, with the catalogue above."""
    patches = dsfix_in(environment.install().directory)

    def add(name, body, options=""):
        (patches / f"{name}.py").write_text(PATCH.format(name=name, body=body, options=options))

    for name, (body, options) in PATCHES.items():
        add(name, body, options)

    def run(*arguments, cwd=environment.directory, **variables):
        env = environment.variables(**variables)
        if "DSFIX_ONLY" not in variables:
            del env["DSFIX_ONLY"]
        command = [sys.executable, "-m", "dsfix", "verify", *arguments]
        done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        return done

    run.environment, run.add = environment, add
    return run


def patches_of(done):
    return {patch["id"]: patch for patch in json.loads(done.stdout)["patches"]}


@pytest.mark.parametrize(
    ("patch_id", "state", "status"),
    [
        ("fixes", "fixed", 0),
        ("does_not_fix", "not fixed", 1),
        ("not_seen", "not seen", 4),
        ("breaks_more", "not fixed", 1),
        ("needs_gpus", "cannot tell", 4),
        ("raises", "no answer", 1),
        ("raises_with_it", "no answer", 1),
        ("gone_by_itself", "no answer", 1),
        ("one_rank_sees_it", "fixed", 0),
        ("one_rank_waits", "no answer", 1),
        ("not_for_this", "no bug", 0),
        ("older_than_claimed", "bug", 1),
        ("off_by_default", "fixed", 0),
        ("drifted", "in trouble", 1),
    ],
)
def test_state_and_exit_status(verify, patch_id, state, status):
    done = verify(patch_id, "--json")
    assert {name: patch["state"] for name, patch in patches_of(done).items()} == {patch_id: state}
    assert done.returncode == status


def test_what_was_seen_is_printed(verify):
    done = verify("fixes", "does_not_fix", "drifted")
    assert "without: the name is missing" in done.stdout
    assert "with: the name is there" in done.stdout
    assert "with: still there" in done.stdout
    assert "drifted" in done.stdout
    assert "without: seen" in done.stdout
    assert "1 fixed, 1 not fixed, 1 in trouble." in done.stdout


def test_json_has_both_runs(verify):
    patch = patches_of(verify("fixes", "--json"))["fixes"]
    assert (patch["without"]["outcome"], patch["without"]["patch"]) == ("bug", "disabled")
    assert (patch["with"]["outcome"], patch["with"]["patch"]) == ("no-bug", "ran")
    assert patch["with"]["versions"]["deepspeed"] == "0.14.2"
    assert patch["with"]["seconds"] > 0


def test_no_second_run_if_the_first_cannot_tell(verify):
    done = verify("needs_gpus", "--json")
    assert patches_of(done)["needs_gpus"]["with"] is None
    assert "needs two GPUs" in verify("needs_gpus").stdout


def test_no_answer_prints_the_last_lines(verify):
    assert "RuntimeError: another bug" in verify("raises").stdout
    done = verify("dies")
    assert "signal SIGSEGV" in done.stdout
    assert "    Segmentation fault" in done.stdout
    assert "rank 1 ended with exit status 3" in verify("one_rank_waits").stdout  # not of the rank that waits for it


def test_time_limit(verify):
    done = verify("pauses", "--timeout", "1")
    assert done.returncode == 1
    assert "timed out after 1 s" in done.stdout


def test_without_ids_patches_that_apply_are_in_trouble_or_are_disabled(verify):
    for path in (verify.environment.directory / "dsfix" / "patches").glob("*_*.py"):
        if path.stem not in ("off_by_default", "not_for_this", "older_than_claimed", "__init__"):
            path.unlink()
    done = verify("--json", DSFIX_SKIP="raises,dies,pauses,kind")
    states = {name: patch["state"] for name, patch in patches_of(done).items()}
    skipped = dict.fromkeys(["dies", "kind", "off_by_default", "pauses", "raises"], "disabled")
    assert states == {"fixes": "fixed", "drifted": "in trouble", **skipped}
    assert json.loads(done.stdout)["left_out"] == {"not-affected": 2, "already-fixed": 0}
    assert all(patches_of(done)[name]["without"] is None for name in (*skipped, "drifted"))


def test_one_line_of_progress_for_each_run(verify):
    done = verify("needs_gpus", "fixes", "--json")
    how_many, *lines = done.stderr.splitlines()
    assert how_many.startswith("dsfix: 4 runs; ")
    assert [line.endswith(" left") for line in lines] == [True, True, False]
    assert [line.partition(",")[0] for line in lines] == [
        "[2/4] needs_gpus without the patch: cannot-tell",
        "[3/4] fixes without the patch: bug",
        "[4/4] fixes with the patch: no-bug",
    ]


def test_low_priority_one_thread_and_no_inherited_ranks(verify):
    done = verify("kind", SLURM_PROCID="3", RANK="3", WORLD_SIZE="8", OMP_NUM_THREADS="64")
    assert "with: nice 19, 1 ranks, 1 threads" in done.stdout


def test_nothing_is_left_behind(verify, tmp_path_factory):
    home, temporary, report = (tmp_path_factory.mktemp(name) for name in ("home", "tmp", "report"))
    verify.add("writes", "[open(os.path.expanduser(p), 'w') for p in ('~/a', 'b', os.environ['TMPDIR'] + '/c')]")
    before = sorted(verify.environment.directory.iterdir())
    done = verify("writes", HOME=str(home), TMPDIR=str(temporary), DSFIX_REPORT=str(report))
    assert done.returncode == 4, done.stdout
    assert [*home.iterdir(), *temporary.iterdir(), *report.iterdir()] == []
    assert sorted(verify.environment.directory.iterdir()) == before


@pytest.fixture
def pausing(verify, tmp_path_factory):
    """A `verify` that has finished one patch and pauses in the reproduction of the next; its FIFO and TMPDIR."""
    fifo = Fifo(tmp_path_factory.mktemp("fifo") / "fifo")
    temporary = tmp_path_factory.mktemp("tmp")
    verify.add("pauses", f"end = os.open({fifo.path!r}, os.O_WRONLY); os.write(end, b'x'); signal.pause()")
    process = verify.environment.start("verify", "fixes", "pauses", DSFIX_ONLY="", TMPDIR=str(temporary))
    assert fifo.read(1) == b"x"
    yield process, fifo, temporary
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(pausing, number):
    process, fifo, temporary = pausing
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert "with: the name is there" in stdout
    assert "Interrupted: 1 of 2 patches done." in stdout
    assert "Traceback" not in stderr
    assert fifo.all_dead()  # the reproduction
    assert list(temporary.iterdir()) == []


def test_interrupted_between_the_two_runs_of_a_patch(verify, tmp_path_factory):
    fifo = Fifo(tmp_path_factory.mktemp("fifo") / "fifo")
    pause = f"end = os.open({fifo.path!r}, os.O_WRONLY); os.write(end, b'x'); signal.pause()"
    verify.add("half", f"if missing: raise BugPresent('it was seen')\n    {pause}")
    process = verify.environment.start("verify", "half", DSFIX_ONLY="")
    assert fifo.read(1) == b"x"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert "without: it was seen" in stdout
    assert "Interrupted: 0 of 1 patches done." in stdout
    assert "1 unfinished." in stdout


def test_killed(pausing):
    process, fifo, _ = pausing
    process.kill()
    process.communicate()
    assert fifo.all_dead()


def test_a_closed_pipe_does_not_hide_the_exit_status(verify):
    process = verify.environment.start("verify", "does_not_fix", DSFIX_ONLY="")
    process.stdout.close()
    process.stdout = None
    stderr = process.communicate()[1]
    assert process.returncode == 1
    assert "Traceback" not in stderr


def test_a_different_deepspeed_in_the_current_directory(verify, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("checkout")
    (elsewhere / "deepspeed").mkdir()
    (elsewhere / "deepspeed" / "__init__.py").touch()
    done = verify("fixes", cwd=elsewhere)
    assert done.returncode == 2
    assert f"{elsewhere}/deepspeed/__init__.py" in done.stderr
    assert "in a different directory" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("candidates", ["['/no/such/directory']", "[os.getcwd()]"])
def test_no_directory_for_temporary_files(verify, candidates):
    code = f"import os, sys, tempfile; tempfile._candidate_tempdir_list = lambda: {candidates}\n"
    code += "from dsfix.cli.main import main; sys.exit(main(['verify', 'fixes']))"
    process = verify.environment.start(code=code, DSFIX_ONLY="")
    _, stderr = process.communicate()
    assert process.returncode == 4
    assert "set TMPDIR" in stderr
    assert "Traceback" not in stderr
