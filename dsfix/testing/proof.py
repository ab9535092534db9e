"""The proof of a patch: its reproduction without and with the patch, on the installed DeepSpeed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsfix import survey
from dsfix.catalogue import entry_points, registry
from dsfix.cli.printing.verify_results import State, VerifiedPatch
from dsfix.lab import reproduction
from dsfix.outcome import Outcome

_PROVEN = (State.FIXED, State.NO_BUG)


def patch_ids(distribution: str) -> list[str]:
    """The ids of all patches of a distribution, for `pytest.mark.parametrize`.

    Raises ValueError if it has none, or one that cannot be loaded: without parameters, no test would fail.
    """
    entries, broken = registry.load()
    name = entry_points.normalized(distribution)
    ids = [entry.id for entry in entries.values() if entry.distribution == name]
    lost = [f"{each.id}: {each.reason}" for each in broken if each.id.startswith((f"{name}:", f"{name} ("))]
    if lost:
        raise ValueError(f"{distribution} has patches that cannot be loaded: {'; '.join(lost)}")
    if not ids:
        raise ValueError(f"{distribution} is not installed, or has no entry point in the group dsfix.patches")
    return ids


def prove(patch_id: str, timeout: float = 300.0) -> None:
    """Fails the test unless the bug is seen without the patch and gone with it, as `python -m dsfix verify ID` does.

    If the patch does not apply to the installed DeepSpeed, the bug must not be seen at all. Skips the test if this
    machine cannot tell. timeout: seconds per run. Raises UnknownPatch.
    """
    [named] = survey.find_entries(patch_id)
    row = VerifiedPatch(named, survey.verdict_if_named(named))
    if row.state not in (State.DISABLED, State.IN_TROUBLE):
        without = reproduction.run(patch_id, False, timeout)
        row = replace(row, without=without)
        if row.verdict.outcome is Outcome.PENDING and without.outcome != "cannot-tell":
            row = replace(row, patched=reproduction.run(patch_id, True, timeout))
    run_lines = [f"{name} the patch: {run.outcome}: {run.detail}" for name, run in row.runs]
    text = "\n".join(
        [f"{patch_id}: {row.state.value}", f"{row.verdict.outcome.value}: {row.verdict.reason}", *run_lines]
    )
    if row.state is State.CANNOT_TELL:
        pytest.skip(text)
    if row.state not in _PROVEN:
        pytest.fail(text, pytrace=False)
