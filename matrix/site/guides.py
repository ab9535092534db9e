"""The hand-written pages of the repository as pages of the site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dsfix.cli.exits import Complaint
from matrix.sdists import Index, Unavailable

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "dsfix/*/README.md", "matrix/**/README.md")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
_SAMPLE = re.compile(r"^```\n(\$ python -m dsfix ((?:list|find|show) .*)\n)[\s\S]*?^```$", re.M)
_RELEASE = "0.14.2"  # that the samples are of


def pages(checkout: Path, index: Index) -> Iterator[tuple[str, str]]:
    """Path in the checkout and text of each page: with whole samples, and without links to what is no page."""
    paths = [path for pattern in PAGES for path in sorted(checkout.glob(pattern))]
    for path in paths:

        def linked(link: re.Match[str], page: Path = path) -> str:
            target = (page.parent / link[2]).resolve()
            if not target.exists():
                raise Complaint(f"{page.relative_to(checkout)} links to {link[2]}, which does not exist")
            return link[0] if target in paths else f"{link[1]} (`{target.relative_to(checkout)}` in the repository)"

        text = _LINK.sub(linked, path.read_text(encoding="utf-8"))
        name = str(path.relative_to(checkout))
        if name == "docs/patches.md":
            text = re.sub(r"^\| `(\w+)` \|", r"| [`\1`](../bugs/\1.md) |", text, flags=re.M)
        text = _SAMPLE.sub(lambda found: _whole(found, index), text)
        yield name, text


def _whole(sample: re.Match[str], index: Index) -> str:
    """The sample with all that the command prints; as it is written if the release is not available."""
    try:
        sources = index.sources(_RELEASE)
    except Unavailable:
        return sample[0]
    environment = {**os.environ, "DSFIX_DISABLE": "", "PYTHONPATH": str(sources), "COLUMNS": "80"}
    command = [sys.executable, "-m", "dsfix", *sample[2].split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return f"```text\n{sample[1]}{done.stdout}```"
