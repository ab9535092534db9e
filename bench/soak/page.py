"""The page that tells what was seen: the section of a part that was not run again stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

TITLE = "# The long run, and faults\n"
HEAD = "## "


def section(part: str, command: str, conditions: str, found: str) -> str:
    return f"{HEAD}{part.capitalize()}\n\n{command}, {conditions}\n\n{found}\n"


def update(page: Path, order: Iterable[str], sections: Mapping[str, str]) -> None:
    """Writes these sections, by part, in place of those that `page` has; it need not be there."""
    old = page.read_text(encoding="utf-8").split(f"\n{HEAD}")[1:] if page.is_file() else []
    whole = {text.split("\n", 1)[0].lower(): f"{HEAD}{text.rstrip()}\n" for text in old} | dict(sections)
    page.write_text("\n".join([TITLE, *(whole[part] for part in order if part in whole)]), encoding="utf-8")
