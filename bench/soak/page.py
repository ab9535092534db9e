"""The page of results; sections of parts that were not run are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

TITLE = "# Long runs and faults\n"
HEAD = "## "


def section(part: str, command: str, conditions: str, found: str) -> str:
    return f"{HEAD}{part.capitalize()}\n\n{command}, {conditions}\n\n{found}\n"


def update(page: Path, order: Iterable[str], sections: Mapping[str, str]) -> None:
    """Replace these sections (part -> text) in the page, or create it."""
    old = page.read_text(encoding="utf-8").split(f"\n{HEAD}")[1:] if page.is_file() else []
    whole = {text.split("\n", 1)[0].lower(): f"{HEAD}{text.rstrip()}\n" for text in old} | dict(sections)
    page.write_text("\n".join([TITLE, *(whole[part] for part in order if part in whole)]), encoding="utf-8")
