"""docs/overhead.md, which has a section for each measurement."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "overhead.md"


def update(heading: str, text: str) -> None:
    """Replace what is below this heading."""
    page = PAGE.read_text(encoding="utf-8")
    [old] = (section for section in f"{page}\n".split("## ") if section.startswith(f"{heading}\n"))
    PAGE.write_text(page.replace(old.rstrip(), f"{heading}\n\n{text.rstrip()}"), encoding="utf-8")
