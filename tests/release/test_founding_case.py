"""The founding bug on a job of two ranks: seen without its patch, gone with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dsfix.catalogue import registry
from dsfix.lab import reproduction
from dsfix.versions import Fit, gate

FOUNDING = "zero3_offload_clip_device"


@pytest.mark.parametrize(("patched", "expected"), [(False, "bug"), (True, "no-bug")])
def test_the_founding_case_on_two_ranks(monkeypatch: pytest.MonkeyPatch, patched: bool, expected: str) -> None:
    entries: dict[str, Any] = dict(registry.catalogue())
    entry = entries[FOUNDING]
    if gate(entry.patch.affects).fit is not Fit.INSIDE:
        pytest.skip("this release does not have the bug")
    for name in ("DSFIX_SKIP", "DSFIX_ONLY", "DSFIX_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    entries[FOUNDING] = entry._replace(patch=dataclasses.replace(entry.patch, ranks=2))
    monkeypatch.setattr(reproduction, "catalogue", lambda: entries)
    sighting = reproduction.run(FOUNDING, patched=patched)
    assert sighting.outcome == expected, sighting.detail
