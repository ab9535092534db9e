"""What was run on the newest tag: `record.json`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = Path(__file__).with_name("record.json")


@dataclass
class Row:
    """One patch. lines: added and removed by the fix; applies: git's complaint; before, after: outcome and detail."""

    lines: int = 0
    test: str = ""
    applies: str = ""
    notes: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    with_others: list[str] = field(default_factory=list)

    @property
    def shown(self) -> bool:
        """Whether the test fails without the fix and passes with it alone."""
        return self.before[:1] == ["failed"] and self.after[:1] == ["passed"]

    @property
    def insufficient(self) -> bool:
        """Whether the fix alone is not enough for its test, or the test does not fail without it."""
        return bool(self.before) and self.before[0] != "skipped" and not self.shown

    @property
    def trouble(self) -> bool:
        return bool(self.applies) or (self.insufficient and self.with_others[:1] != ["passed"])


@dataclass
class Record:
    """tree: the clone's commit, as `git describe` names it."""

    tree: str = ""
    date: str = ""
    rows: dict[str, Row] = field(default_factory=dict)


def load(file: Path = FILE) -> Record:
    """The record, empty if there is no file."""
    if not file.is_file():
        return Record()
    data = json.loads(file.read_text(encoding="utf-8"))
    return Record(data["tree"], data["date"], {name: Row(**row) for name, row in data["rows"].items()})


def save(record: Record, file: Path = FILE) -> None:
    partial = file.with_name(f".{file.name}.partial")
    rows = dict(sorted(record.rows.items()))
    partial.write_text(json.dumps({**asdict(record), "rows": {n: asdict(r) for n, r in rows.items()}}, indent=1) + "\n")
    os.replace(partial, file)
