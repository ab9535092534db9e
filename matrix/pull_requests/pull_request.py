"""One diff for DeepSpeed's repository: the fix, and the test that fails without it."""

from __future__ import annotations

from typing import NamedTuple

from dsfix.catalogue.registry import Entry
from dsfix.cli.printing.edits import Unwritable, difference
from matrix.pull_requests.fix import changed_files
from matrix.pull_requests.unit_test import test_file, unit_test


class PullRequest(NamedTuple):
    """diff: for `git apply`; test: its path; "" where there is none, and `notes` say why."""

    diff: str
    test: str
    notes: tuple[str, ...]


def pull_request(entry: Entry) -> PullRequest:
    """What there is of it for a patch that applies to the DeepSpeed that `import deepspeed` would find."""
    try:
        files = changed_files(entry)
    except Unwritable as error:
        return PullRequest("", "", (f"{entry.id} cannot be written as a patch of DeepSpeed's source: {error}",))
    diff = "".join(_of(name, before, after) for name, (before, after) in files.items())
    try:
        name, text = test_file(entry), unit_test(entry)
    except Unwritable as error:
        why = f"{entry.id} has no test: its reproduction cannot be one of DeepSpeed's: {error}"
        return PullRequest(diff, "", (why,))
    return PullRequest(diff + _of(name, None, text), name, ())


def _of(name: str, before: str | None, after: str) -> str:
    new = "new file mode 100644\n" if before is None else ""
    return f"diff --git a/{name} b/{name}\n{new}{difference(name, before, after)}"
