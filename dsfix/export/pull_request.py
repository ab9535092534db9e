"""One diff for DeepSpeed's repository: the fix, and the test that fails without it."""

from __future__ import annotations

from dataclasses import dataclass

from ..catalogue.registry import Entry
from .edits import difference
from .source_patch import changed_files
from .text import Inexportable
from .unit_test import test_file, unit_test


@dataclass(frozen=True)
class PullRequest:
    """diff: for `git apply`; test: its path; "" where there is none, and `notes` say why."""

    diff: str
    test: str
    notes: tuple[str, ...]


def pull_request(entry: Entry) -> PullRequest:
    """What there is of it for a patch that applies to the installed DeepSpeed."""
    try:
        files = changed_files(entry)
    except Inexportable as error:
        return PullRequest("", "", (f"{entry.id} cannot be written as a patch of DeepSpeed's source: {error}",))
    diff = "".join(_of(name, before, after) for name, (before, after) in files.items())
    try:
        name, text = test_file(entry), unit_test(entry)
    except Inexportable as error:
        return PullRequest(
            diff, "", (f"{entry.id} has no test: its reproduction cannot be one of DeepSpeed's: {error}",)
        )
    return PullRequest(diff + _of(name, None, text), name, ())


def _of(name: str, before: str | None, after: str) -> str:
    new = "new file mode 100644\n" if before is None else ""
    return f"diff --git a/{name} b/{name}\n{new}{difference(name, before, after)}"
