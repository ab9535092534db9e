"""The samples of output in docs/: a line "…" stands for any lines, "…" inside one for any text."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def sample(page, first):
    """The sample of the page whose first line begins so."""
    return re.search(rf"^```\n({re.escape(first)}[\s\S]*?)^```$", (DOCS / page).read_text("utf-8"), re.M)[1]


def prints(shown, sample):
    """Whether what was printed is the sample."""
    lines = (
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in sample.splitlines()
    )
    return re.fullmatch("".join(lines), shown.rstrip("\n") + "\n") is not None
