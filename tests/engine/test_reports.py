"""DSFIX_REPORT: a report of each process, however it ends."""

import json
import signal

import pytest


def reports(world):
    """pid -> outcome of `cure`; each file in the directory is a whole report."""
    results = [json.loads(file.read_text()) for file in (world.path / "reports").iterdir()]
    return {each["pid"]: each["patches"][0]["outcome"] for each in results}


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("raise RuntimeError('out of memory')", 1),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(3)", 3),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_however_the_job_ends(simple, end, status):
    simple.run(f"import dsfix, deepspeed.m, os, signal\n{end}", code=status, DSFIX_REPORT="reports")
    assert list(reports(simple).values()) == ["applied"]


def test_a_child_forked_after_all_patches_were_applied(simple):
    result = simple.run(
        """
        import dsfix, deepspeed.m, os
        children = []
        for _ in range(3):
            child = os.fork()
            if not child:
                os._exit(0)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        tell([os.getpid(), *children])
        """,
        DSFIX_REPORT="reports",
    )
    assert reports(simple) == dict.fromkeys(result.value, "applied")
    assert result.warnings == []


def test_a_fork_while_another_thread_holds_a_lock(simple):
    result = simple.run(
        """
        import dsfix, deepspeed.m, os, signal, threading
        from dsfix import process
        from dsfix.engine import rewrite
        held, done = threading.Event(), threading.Event()
        def hold():
            with process._engine.states["cure"].lock, rewrite.lock:
                held.set()
                done.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(30)  # instead of a hang
            dsfix.revert("cure")
            os._exit(deepspeed.m.f(1) != 2)
        assert os.waitpid(child, 0)[1] == 0
        done.set()
        thread.join()
        tell(outcomes())
        """
    )
    assert result.value == {"cure": "applied"}


@pytest.mark.parametrize("first", ["import dsfix, deepspeed.m", "import deepspeed.m, dsfix"])
def test_a_job_stopped_by_strict(simple, first):
    simple.module("deepspeed.m", "def f(x):\n    return x\n")
    simple.run(first, code=1, DSFIX_STRICT="1", DSFIX_REPORT="reports")
    assert list(reports(simple).values()) == ["drifted"]


def test_a_full_disk_is_one_warning_and_leaves_nothing_half_written(simple):
    result = simple.run(
        """
        import os, resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # bytes of each file
        import dsfix, deepspeed.m
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        tell([deepspeed.m.f(1), os.listdir("reports")])
        """,
        DSFIX_REPORT="reports",
    )
    assert result.value == [3, []]
    (warning,) = result.warnings
    assert "DSFIX_REPORT: no report can be written to" in warning
    assert "File too large" in warning
