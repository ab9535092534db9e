"""The diff of each kind of edit, on a stand-in for a DeepSpeed module."""

import pytest

from dsfix.cli.printing.edits import Unwritable, unified_diff
from dsfix.patch import Edit

SOURCE = """\
def f(x, y):
    if x: y = 1
    z = abs(x) + abs(x)
    return (
        z,
        "é", abs(y),
    )
"""


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """The lines that an edit removes and adds."""
    (tmp_path / "diffed_module.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def lines(*edits):
        diff = unified_diff([Edit("diffed_module:f", **edit) for edit in edits])
        assert diff.startswith("--- a/diffed_module.py\n+++ b/diffed_module.py\n")
        return [line for line in diff.splitlines()[2:] if line[0] in "+-"]

    return lines


def test_after(changed):
    assert changed({"after": "z = abs(x) + abs(x)", "code": "if z:\n    z += 1"}) == ["+    if z:", "+        z += 1"]


def test_before(changed):
    assert changed({"before": "z = abs(x) + abs(x)", "code": "x = -x"}) == ["+    x = -x"]


def test_replaced_statement(changed):
    assert changed({"replace": "z = abs(x) + abs(x)", "code": "z = 0"}) == ["-    z = abs(x) + abs(x)", "+    z = 0"]


def test_two_expressions_of_one_line(changed):
    removed, added = changed({"replace": "abs(x)", "code": "float(abs(x))", "count": 2})
    assert added == "+    z = float(abs(x)) + float(abs(x))"
    assert removed == "-    z = abs(x) + abs(x)"


def test_columns_count_bytes(changed):
    assert changed({"replace": "abs(y)", "code": "y"}) == ['-        "é", abs(y),', '+        "é", y,']


def test_several_edits(changed):
    edits = ({"before": "z = abs(x) + abs(x)", "code": "x = -x"}, {"after": "z = abs(x) + abs(x)", "code": "z += 1"})
    assert changed(*edits) == changed(*reversed(edits)) == ["+    x = -x", "+    z += 1"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_edits_at_one_place_keep_their_order(changed, where):
    edits = [{where: "z = abs(x) + abs(x)", "code": code} for code in ("x += 1", "x *= 2")]
    assert changed(*edits) == ["+    x += 1", "+    x *= 2"]


def test_an_anchor_that_shares_its_line_is_refused(changed):
    with pytest.raises(Unwritable, match="holds more than the anchor"):
        changed({"after": "y = 1", "code": "y += 1"})


def test_the_file_of_a_package_is_its_init_file(tmp_path, monkeypatch):
    (tmp_path / "diffed_package" / "inner").mkdir(parents=True)
    (tmp_path / "diffed_package" / "__init__.py").touch()
    (tmp_path / "diffed_package" / "inner" / "__init__.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    diff = unified_diff([Edit("diffed_package.inner:f", replace="return 1", code="return 2")])
    assert diff.startswith("--- a/diffed_package/inner/__init__.py\n+++ b/diffed_package/inner/__init__.py\n")
