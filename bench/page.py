"""Pages of results: sections of what was not measured are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

HEAD = "## "
IMPORT, STEP, START = "At import", "In a training step", "At the start of Python"  # of docs/costs.md


def update(page: Path, title: str, order: Iterable[str], sections: Mapping[str, str]) -> None:
    """Replace these sections (heading -> text) in the page, or create it."""
    old = page.read_text(encoding="utf-8").split(f"\n{HEAD}")[1:] if page.is_file() else []
    whole = {**dict(text.split("\n\n", 1) for text in old), **sections}
    parts = [f"{HEAD}{heading}\n\n{whole[heading].strip()}\n" for heading in order if heading in whole]
    page.write_text("\n".join([f"# {title}\n", *parts]), encoding="utf-8")


def update_costs(page: Path | None, heading: str, text: str) -> None:
    """Print a section of docs/costs.md, and replace it in the page if there is one."""
    print(text)
    if page is not None:
        update(page, "What dsfix costs", (IMPORT, STEP, START), {heading: text})
