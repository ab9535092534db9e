"""The verb Edit on real DeepSpeed functions of every kind: it works, is seen, can be taken back, and leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest

KINDS = (
    "plain method",
    "method behind instrument_w_nvtx",
    "method with super()",
    "method with private names",
    "method with a private name of its own",
    "nested function, made earlier by a decorator",
    "nested function with a closure, made earlier",
    "staticmethod",
    "classmethod",
    "generator",
    "function imported by name elsewhere",
)


@pytest.fixture(scope="module")
def results(run_program: Any, import_patches: str) -> dict[str, Any]:
    found, _ = run_program("kinds", DSFIX_ONLY=import_patches)
    return dict(found)


@pytest.fixture(params=KINDS)
def result(request: pytest.FixtureRequest, results: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = results[request.param]
    if "absent" in found:
        pytest.skip(f"this release has no {request.param}: {'; '.join(found['absent'])}")
    assert "error" not in found, found["error"]
    return found


def test_the_table_of_kinds_is_complete(results: dict[str, Any]) -> None:
    assert sorted(results) == sorted(KINDS)


def test_the_edit_is_seen_and_changes_nothing_else(result: dict[str, Any]) -> None:
    assert result["judged"] == "pending"
    value, marks = result["before"]
    assert marks == 0
    assert result["code_swapped"]
    assert result["edited"][0] == value
    assert result["edited"][1] > 0


def test_revert_brings_the_same_code_object_back(result: dict[str, Any]) -> None:
    assert result["original_code_back"]
    assert result["reverted"] == result["before"]


def test_a_traceback_shows_the_line_on_disk(result: dict[str, Any]) -> None:
    assert result["trace"] == result["line_on_disk"]


def test_source_and_pickle_are_as_before(result: dict[str, Any]) -> None:
    assert result["source_as_shown"]
    assert result["pickle_as_before"]


def test_compile_runs_the_edited_function(result: dict[str, Any]) -> None:
    if "compiled" not in result:
        pytest.skip("compiled for some kinds only: it takes seconds")
    assert result["compiled"]["value"] == [3.0, 3.0, 3.0]
    assert result["compiled"]["seen"] > 0
