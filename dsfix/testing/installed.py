"""The proof and the contract for the patches of this environment, on its installed DeepSpeed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix import survey
from dsfix.catalogue import entry_points, registry
from dsfix.catalogue.registry import Entry
from dsfix.cli.printing.verify_results import State, VerifiedPatch
from dsfix.lab import reproduction
from dsfix.outcome import Outcome
from dsfix.testing.contract import checks
from dsfix.testing.contract.case import Case
from dsfix.testing.contract.machine import Machine, started

_CHECKS = {check.__name__: check for check in checks.CHECKS}
CHECKS: tuple[str, ...] = tuple(_CHECKS)
"""The names of the contract's checks, for `pytest.mark.parametrize`."""


@dataclass
class Contract:
    """The checks that every patch must pass; `root` is a directory with only the installed DeepSpeed."""

    machine: Machine
    root: Path
    release: str

    def check(self, patch_id: str, check: str) -> None:
        """Fails the test if the patch does not pass the check; skips it if the check does not apply to the patch.

        check: one of CHECKS. Raises UnknownPatch, and KeyError for an unknown check.
        """
        chosen, [named] = _CHECKS[check], survey.find_entries(patch_id)
        verdict = survey.verdict_if_named(named)
        if verdict.outcome is not Outcome.PENDING:
            pytest.skip(f"{patch_id} does not apply here: {verdict.outcome.value}: {verdict.reason}")
        try:
            chosen(self._case(named))
        except checks.NotApplicable as reason:
            pytest.skip(f"{patch_id}: {reason}")

    def together(self) -> None:
        """Fails the test unless all patches that apply here, including those of plug-ins, are in effect together.

        Takes minutes; DSFIX_ONLY and DSFIX_SKIP select patches.
        """
        checks.all_at_once([self._case(each) for each in self._applying])

    def _case(self, entry: Entry) -> Case:
        return Case(
            entry=entry,
            release=self.release,
            root=self.root,
            catalogue=registry.catalogue(),
            applying=self._applying if entry in self._applying else (*self._applying, entry),
            front=self.machine.front(self.release),
            machine=self.machine,
        )

    @functools.cached_property
    def _applying(self) -> tuple[Entry, ...]:
        verdicts = survey.verdicts()
        return tuple(e for e in registry.catalogue().values() if verdicts[e.id].outcome is Outcome.PENDING)


@pytest.fixture(scope="session")
def dsfix_contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contract]:
    """The contract on the installed DeepSpeed; skips if it is not available. See `Contract`."""
    if not sys.platform.startswith("linux") or sys.version_info < (3, 11):
        pytest.skip("the contract needs Linux and Python 3.11 or newer")
    spec = find_spec("deepspeed")
    if spec is None or spec.origin is None:
        pytest.skip("DeepSpeed is not installed")
    distribution = metadata.distribution("deepspeed")
    root = tmp_path_factory.mktemp("installed")
    (root / "deepspeed").symlink_to(Path(spec.origin).parent)
    information = root / f"deepspeed-{distribution.version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(distribution.read_text("METADATA") or "", encoding="utf-8")
    with started(tmp_path_factory.mktemp("contract")) as machine:
        yield Contract(machine, root, distribution.version)


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
    verdict_line = f"{row.verdict.outcome.value}: {row.verdict.reason}"
    text = "\n".join([f"{patch_id}: {row.state.value}", verdict_line, *run_lines])
    if row.state is State.CANNOT_TELL:
        pytest.skip(text)
    if row.state not in (State.FIXED, State.NO_BUG):
        pytest.fail(text, pytrace=False)
