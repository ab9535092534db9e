"""The rank check with real DeepSpeed on 2 to 8 ranks, and the comparison alone through torch's store."""

import json
import os
import shutil
import socket
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import dsfix.patches
import pytest
from packaging.version import Version

from dsfix.guards import rank_check
from dsfix.guards.statement import Statement
from tests.processes import ended, forked, to_fork, without_dsfix
from tests.samples import assert_sample

torch = pytest.importorskip("torch")
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
PROGRAM = Path(__file__).parent / "programs" / "ranks.py"
DIFFER = "RankError: the ranks of this job differ"
SKIPPED = "frozen_parameters_decayed"  # applies to all releases that these tests run on


@pytest.fixture(scope="module")
def command():
    with forked("cpu") as command:
        yield command


@pytest.fixture
def job(tmp_path, command):
    """Runs the program and returns the result of each rank."""

    def run(*kinds, script="train", **variables):
        result = tmp_path / "result"
        env = without_dsfix(**to_fork(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", **variables))
        done = ended(command(PROGRAM, result, ",".join(kinds), script), tmp_path, env)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return json.loads(result.read_text(encoding="utf-8"))

    return run


@pytest.fixture
def other(tmp_path):
    """A directory with this dsfix under a different version number."""
    package = tmp_path / "other" / "dsfix"
    shutil.copytree(Path(str(dsfix.__file__)).parent, package, ignore=shutil.ignore_patterns("__pycache__", "patches"))
    patches = Path(dsfix.patches.__file__).parent
    shutil.copytree(patches, package / "patches", ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(text.replace(f'__version__ = "{dsfix.__version__}"', '__version__ = "0.0.9"'))
    return str(package.parent)


@needs_deepspeed
def test_equal_ranks_train(job):
    seen = job("alike", "alike", "alike", "alike")
    assert [(each["error"], each["trained"]) for each in seen] == [("", True)] * 4


@needs_deepspeed
def test_a_difference_is_the_same_error_on_the_ranks(job, other):
    """A rank that is still in the last collective of deepspeed.initialize may see that others have ended instead."""
    kinds = ["alike"] * 8
    kinds[3], kinds[5] = "other", f"skip={SKIPPED}"
    seen = job(*kinds, OTHER_DSFIX=other)
    assert all(each["error"] for each in seen)
    (error,) = {each["error"] for each in seen if each["error"].startswith(DIFFER)}
    _, *lines = error.splitlines()
    host = os.uname().nodename
    assert lines[:-1] == [
        f"  rank 3 ({host}): dsfix 0.0.9, elsewhere {dsfix.__version__}",
        f"  rank 5 ({host}): {SKIPPED}: disabled (named in DSFIX_SKIP), elsewhere applied",
    ]
    assert "DSFIX_RANK_CHECK=0" in lines[-1]
    assert not any(each["trained"] for each in seen)
    assert any("the ranks of this job differ" in each["log"] for each in seen)  # before the engine's collectives


@needs_deepspeed
def test_a_difference_passes_with_the_check_disabled(job):
    seen = job("alike", f"skip={SKIPPED}", DSFIX_RANK_CHECK="0")
    assert [(each["error"], each["trained"]) for each in seen] == [("", True)] * 2


@needs_deepspeed
def test_a_rank_without_dsfix_is_named_and_not_waited_for(job):
    if Version(metadata.version("deepspeed")) < Version("0.14.4"):
        pytest.skip("this release cannot be imported without dsfix")
    seen = job("alike", "without", "alike")
    assert [(each["error"], each["trained"]) for each in seen] == [("", True)] * 3
    assert "rank 1 has not reported: it is slow, or runs without dsfix." in seen[0]["log"]
    assert not seen[1]["log"]


@needs_deepspeed
@pytest.mark.parametrize("how", ["by turns", "rank 0 only"])
def test_init_distributed_stays_local_if_the_script_created_the_process_group(job, how):
    """HARM: the others wait at a barrier until the main process has downloaded; or they run no DeepSpeed at all."""
    seen = job("alike", "alike", script=how)
    assert [(each["error"], each["log"]) for each in seen] == [("", "")] * 2


def statement(version="0.1.0", **outcomes):
    return Statement({"dsfix": version}, outcomes, {})


def board(store, rank, size, mine=None):
    made = rank_check.StatementStore(store, rank, size)
    if mine:
        made.publish(mine)
    return made


@pytest.fixture
def store():
    return torch.distributed.HashStore()


def test_each_rank_sees_earlier_statements(store):
    usual, other = statement(a="applied"), statement("0.2.0", a="failed")
    boards = [board(store, rank, 4, mine) for rank, mine in enumerate((usual, usual))]
    assert [each.differences() for each in boards] == ["", ""]
    last = board(store, 2, 4, other)
    assert last.differences() == boards[0].differences()
    assert "rank 2 " in last.differences()
    assert "rank 0" not in last.differences()
    assert boards[0].silent() == [3]
    board(store, 3, 4, usual)
    assert boards[0].silent() == []


def test_different_digests_alone_are_not_a_difference(store):
    outcomes = ("applied", "pending", "already-fixed")
    boards = [board(store, rank, 3, statement(a=outcome)) for rank, outcome in enumerate(outcomes)]
    assert [each.differences() for each in boards] == [""] * 3


def test_equal_ranks_cost_one_request_however_many_they_are(store, monkeypatch):
    boards = [board(store, rank, 64, statement(a="applied")) for rank in range(64)]
    monkeypatch.setattr(boards[0], "store", SimpleNamespace(add=store.add))
    assert (boards[0].differences(), boards[0].silent()) == ("", [])


def test_a_rank_overwrites_the_statement_of_an_earlier_attempt(store):
    """torch's elastic agent keeps one store for all attempts."""
    usual, other = statement(a="applied"), statement(a="failed")
    first, _ = (board(store, rank, 2, mine) for rank, mine in enumerate((usual, other)))
    assert "rank 1 " in first.differences()
    second, _ = (board(store, rank, 2, usual) for rank in range(2))
    assert second.differences() == ""


def test_the_sample_in_the_docs(store, monkeypatch):
    usual = dict.fromkeys(["frozen_parameters_decayed"], "applied")
    versions = {"dsfix": "0.1.0", "deepspeed": "0.14.2", "torch": "2.13.0"}
    statements = [Statement(versions, usual, {})] * 6
    statements[3] = Statement({**versions, "dsfix": "0.0.9"}, usual, {})
    skipped = {"frozen_parameters_decayed": "disabled"}
    statements[5] = Statement(versions, skipped, {"frozen_parameters_decayed": "named in DSFIX_SKIP"})
    for rank, each in enumerate(statements):
        monkeypatch.setattr(socket, "gethostname", lambda rank=rank: f"node{rank // 2}")
        board(store, rank, 6, each)
    text = f"{board(store, 0, 6).differences()}\n{rank_check._ADVICE}"
    assert_sample("guards.md", f"dsfix.guards.rank_check.RankError: {text}")
