"""The rank check with real DeepSpeed on 2, 4 and 8 ranks, and the comparison alone through torch's store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from datetime import timedelta
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

import pytest
from packaging.version import Version

import dsfix
from dsfix import log
from dsfix.catalogue import registry
from dsfix.guards import rank_check
from dsfix.guards.statement import Statement

torch = pytest.importorskip("torch")
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
PROGRAM = Path(__file__).parent / "programs" / "ranks.py"
DIFFER = "RankError: the ranks of this job differ"
SKIPPED = "frozen_parameters_decayed"  # applies to all releases that these tests run on


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs the program and returns the result of each rank."""

    def run(*kinds: str, limit: float = 0, **variables: str) -> list[dict[str, Any]]:
        result = tmp_path / "result"
        env = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
        env.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", **variables)
        command = [sys.executable, str(PROGRAM), str(result), ",".join(kinds), str(limit)]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        seen: list[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))
        return seen

    return run


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A directory with this dsfix under another version number."""
    package = tmp_path / "other" / "dsfix"
    shutil.copytree(Path(str(dsfix.__file__)).parent, package, ignore=shutil.ignore_patterns("__pycache__", "patches"))
    patches = Path(str(next(iter(registry.catalogue().values())).module.__file__)).parent
    shutil.copytree(patches, package / "patches", ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(text.replace(f'__version__ = "{dsfix.__version__}"', '__version__ = "0.0.9"'))
    return str(package.parent)


@needs_deepspeed
def test_equal_ranks_train(job: Any) -> None:
    seen = job("alike", "alike", "alike", "alike")
    assert [(each["error"], each["trained"]) for each in seen] == [("", True)] * 4


@needs_deepspeed
def test_a_difference_is_the_same_error_on_all_ranks(job: Any, other: str) -> None:
    kinds = ["alike"] * 8
    kinds[3], kinds[5] = "other", f"skip={SKIPPED}"
    seen = job(*kinds, OTHER_DSFIX=other)
    assert len({each["error"] for each in seen}) == 1
    first, *lines = seen[0]["error"].splitlines()
    assert first.startswith(DIFFER)
    host = os.uname().nodename
    assert lines[:-1] == [
        f"  rank 3 ({host}): dsfix 0.0.9, elsewhere {dsfix.__version__}",
        f"  rank 5 ({host}): {SKIPPED}: disabled (named in DSFIX_SKIP), elsewhere applied",
    ]
    assert "DSFIX_RANK_CHECK=0" in lines[-1]
    assert not any(each["trained"] for each in seen)


@needs_deepspeed
def test_a_difference_passes_with_the_check_disabled(job: Any) -> None:
    seen = job("alike", f"skip={SKIPPED}", DSFIX_RANK_CHECK="0")
    assert [(each["error"], each["trained"]) for each in seen] == [("", True)] * 2


@needs_deepspeed
def test_a_rank_without_dsfix_is_named_after_the_time_limit(job: Any) -> None:
    if Version(metadata.version("deepspeed")) < Version("0.14.4"):
        pytest.skip("this release cannot be imported without dsfix")
    seen = job("alike", "without", "alike", limit=6)
    for each in (seen[0], seen[2]):
        assert each["error"].startswith("RankError: no answer from rank 1 in 6 s: without dsfix"), each
    assert not any(each and each["trained"] for each in seen)


def statement(version: str = "0.1.0", **outcomes: str) -> Statement:
    return Statement({"dsfix": version}, outcomes, {})


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The verdicts of ranks that are threads with one store; None is a missing rank."""
    monkeypatch.setattr(rank_check, "PATIENCE", timedelta(seconds=1))

    store = torch.distributed.HashStore()

    def run(*statements: Statement | None, limit: float = 60) -> list[str]:
        store.set_timeout(timedelta(seconds=limit))
        verdicts: dict[int, str] = {}

        def one(rank: int, mine: Statement) -> None:
            prefixed = torch.distributed.PrefixStore("dsfix", store)
            verdicts[rank] = rank_check.Comparison(prefixed, rank, len(statements)).verdict(mine)

        threads = [threading.Thread(target=one, args=(rank, mine)) for rank, mine in enumerate(statements) if mine]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [verdicts[rank] for rank, mine in enumerate(statements) if mine]

    return run


def test_the_verdict_is_the_same_everywhere(compare: Any) -> None:
    assert compare(*[statement(a="applied")] * 32) == [""] * 32
    (verdict,) = set(compare(*[statement(a="applied")] * 30, statement(a="failed"), statement("0.2.0", a="applied")))
    assert "rank 30 " in verdict
    assert "rank 31 " in verdict


def test_different_digests_alone_are_no_difference(compare: Any) -> None:
    assert compare(statement(a="applied"), statement(a="pending"), statement(a="already-fixed")) == [""] * 3


def test_the_log_names_missing_ranks_early_and_the_error_names_all_differences(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "warn", said.append)
    (verdict,) = set(compare(statement(), statement("0.2.0"), None, None, None, statement(), None, limit=2))
    assert said == ["no answer from ranks 2-4, 6: late, or without dsfix; waiting for 2 s"]
    assert "rank 1 " in verdict
    assert "no answer from ranks 2-4, 6 in 2 s" in verdict
    (verdict,) = set(compare(None, statement(), statement(), limit=2))
    assert verdict.startswith("no answer from rank 0 in 2 s")


def test_a_store_used_by_an_earlier_attempt(compare: Any) -> None:
    """torch's elastic agent keeps one store for all attempts."""
    usual, other = statement(a="applied"), statement(a="failed")
    for _ in range(2):
        assert compare(usual, usual) == ["", ""]
        (verdict,) = set(compare(usual, other))
        assert "rank 1 " in verdict


def test_a_rank_that_sees_an_earlier_attempt_before_rank_0_starts() -> None:
    store = torch.distributed.HashStore()
    usual, other = statement(a="applied"), statement(a="failed")
    verdicts: dict[int, str] = {}

    def one(rank: int, mine: Statement) -> None:
        verdicts[rank] = rank_check.Comparison(store, rank, 2).verdict(mine)

    first = [threading.Thread(target=one, args=(rank, usual)) for rank in (0, 1)]
    for thread in first:
        thread.start()
    for thread in first:
        thread.join()
    token = store.get("0").decode().split()[0]
    again = [threading.Thread(target=one, args=(rank, mine)) for rank, mine in ((1, other), (0, usual))]
    again[0].start()
    store.wait([f"{token}/{other.digest}"], timedelta(seconds=60))  # rank 1 has answered rank 0 of the first attempt
    again[1].start()
    for thread in again:
        thread.join()
    assert verdicts[0] == verdicts[1]
    assert "rank 1 " in verdicts[0]
