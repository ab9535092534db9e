"""Each bug of the catalogue on the installed release: seen without its patch where it is said to be, and only there."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dsfix import registry
from dsfix.lab import reproduction
from dsfix.versions import Fit, gate

FOUNDING = "zero3_offload_clip_device"


@pytest.fixture(autouse=True)
def _nothing_set_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DSFIX_SKIP", "DSFIX_ONLY", "DSFIX_DISABLE", "DSFIX_STRICT", "DSFIX_REPORT"):
        monkeypatch.delenv(name, raising=False)


def _seen(patch_id: str, patched: bool) -> str:
    sighting = reproduction.run(patch_id, patched=patched)
    if sighting.outcome == "cannot-tell":
        pytest.skip(sighting.detail)
    assert sighting.outcome in ("bug", "no-bug"), sighting.detail
    return sighting.outcome


def _inside(patch_id: str) -> bool:
    return gate(registry.catalogue()[patch_id].patch).fit is Fit.INSIDE


@pytest.mark.parametrize("patch_id", registry.catalogue())
def test_without_the_patch_the_bug_is_there_exactly_in_its_range(patch_id: str) -> None:
    assert _seen(patch_id, patched=False) == ("bug" if _inside(patch_id) else "no-bug")


@pytest.mark.parametrize("patch_id", registry.catalogue())
def test_with_the_patch_the_bug_is_gone(patch_id: str) -> None:
    if not _inside(patch_id):
        pytest.skip("this release does not have the bug")
    assert _seen(patch_id, patched=True) == "no-bug"


@pytest.mark.parametrize(("patched", "expected"), [(False, "bug"), (True, "no-bug")])
def test_the_founding_case_on_two_ranks(monkeypatch: pytest.MonkeyPatch, patched: bool, expected: str) -> None:
    if not _inside(FOUNDING):
        pytest.skip("this release does not have the bug")
    entries: dict[str, Any] = dict(registry.catalogue())
    entry = entries[FOUNDING]
    entries[FOUNDING] = dataclasses.replace(entry, patch=dataclasses.replace(entry.patch, ranks=2))
    monkeypatch.setattr(reproduction, "catalogue", lambda: entries)
    assert _seen(FOUNDING, patched) == expected
