"""Which differences between ranks are reported, and which are not."""

import socket

import pytest

from dsfix.guards import rank_check
from dsfix.guards.statement import Statement, differences
from tests.samples import assert_sample

USUAL = {"dsfix": "0.1.0", "deepspeed": "0.14.2", "torch": "2.13.0"}


def statement(reasons=(), versions=(), **outcomes):
    return Statement({**USUAL, **dict(versions)}, outcomes, dict(reasons))


def two(one, other):
    """The differences between rank 2, where `a` has the outcome `other`, and ranks 0 and 1, where it has `one`."""
    return differences([([0, 1], statement(a=one)), ([2], statement(a=other))])


@pytest.mark.parametrize("lacks", ["disabled", "drifted", "conflict", "failed"])
def test_a_fix_that_a_rank_lacks_is_a_difference(lacks):
    assert two("applied", lacks) == {(2,): [f"a: {lacks}, elsewhere applied"]}
    assert two(lacks, "applied") == {(2,): [f"a: applied, elsewhere {lacks}"]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("pending", other) for other in ("applied", "drifted", "conflict", "failed", "not-affected")),
        *(("applied", other) for other in ("not-affected", "already-fixed")),
        *(("disabled", other) for other in ("not-affected", "already-fixed", "drifted", "failed")),
    ],
)
def test_allowed_differences(one, other):
    assert two(one, other) == two(other, one) == {}


def test_a_pending_fix_and_one_that_never_comes():
    assert two("pending", "disabled") == {(2,): ["a: disabled, elsewhere pending"]}


def test_a_patch_missing_from_one_catalogue():
    assert differences([([0, 1], statement(a="applied")), ([2], statement())]) == {
        (2,): ["a: not in the catalogue, elsewhere applied"]
    }
    assert differences([([0, 1], statement(a="not-affected")), ([2], statement())]) == {}


@pytest.mark.parametrize("name", USUAL)
def test_versions(name):
    groups = [([0, 1, 3], statement()), ([2], statement(versions={name: "0.0.9"}))]
    assert differences(groups) == {(2,): [f"{name} 0.0.9, elsewhere {USUAL[name]}"]}


def test_in_a_tie_rank_0_is_usual():
    groups = [([1, 2], statement(versions={"torch": ""})), ([0, 3], statement())]
    assert differences(groups) == {(1, 2): ["torch of unknown version, elsewhere 2.13.0"]}


def test_ranks_with_the_same_difference_are_grouped():
    groups = [
        ([0, 1, 2, 3, 4], statement(a="applied", b="applied")),
        ([5, 7], statement(a="disabled", b="applied", reasons={"a": "named in DSFIX_SKIP"})),
        ([6], statement(a="disabled", b="pending", reasons={"a": "named in DSFIX_SKIP"})),
    ]
    assert differences(groups) == {(5, 6, 7): ["a: disabled (named in DSFIX_SKIP), elsewhere applied"]}


def test_many_patches_are_counted():
    ids = [f"p{number}" for number in range(9)]
    groups = [([0, 1], statement(**dict.fromkeys(ids, "applied"))), ([2], statement(**dict.fromkeys(ids, "disabled")))]
    assert differences(groups) == {(2,): ["p0, p1, p2, p3, p4 and 4 more: disabled, elsewhere applied"]}


def test_the_digest_covers_outcomes_and_versions_but_not_reasons():
    digest = statement(a="failed", reasons={"a": "/home/one"}).digest
    assert digest == statement(a="failed", reasons={"a": "/home/two"}).digest
    assert digest != statement(a="applied").digest
    assert digest != statement(a="failed", versions={"torch": "2.3.1"}).digest
    assert Statement.from_json(statement(a="failed").to_json()).digest == statement(a="failed").digest


class Store(dict):
    """Like the store of a process group."""

    def set(self, key, value):
        self[key] = value.encode()

    def add(self, key, count):
        self[key] = self.get(key, 0) + count
        return self[key]

    def check(self, keys):
        return self.keys() >= {*keys}


def test_the_sample_in_the_docs(monkeypatch):
    applied, store = {"frozen_parameters_decayed": "applied"}, Store()
    why = {"frozen_parameters_decayed": "named in DSFIX_SKIP"}
    statements = [statement(**applied)] * 6
    statements[3] = statement(versions={"dsfix": "0.0.9"}, **applied)
    statements[5] = statement(why, frozen_parameters_decayed="disabled")
    for rank, each in enumerate(statements):
        monkeypatch.setattr(socket, "gethostname", lambda rank=rank: f"node{rank // 2}")
        rank_check.StatementStore(store, rank, 6).publish(each)
    text = f"{rank_check.StatementStore(store, 0, 6).differences()}\n{rank_check._ADVICE}"
    assert_sample("guards.md", f"dsfix.guards.rank_check.RankError: {text}")
