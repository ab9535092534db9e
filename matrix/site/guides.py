"""The hand-written pages of the repository as pages of the site."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dsfix.cli.exits import OK, TROUBLE, CommandError
from matrix.sdists import Index, Unavailable

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "dsfix/*/README.md", "matrix/**/README.md")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
_SAMPLE = re.compile(
    r"^```\n(\$ python (-m dsfix (?:list|find|show|check) .*|-c \"import dsfix, deepspeed\")\n)[\s\S]*?^```$", re.M
)
_CONFIG = re.compile(r"^```json\n([\s\S]*?)^```$", re.M)  # that a page checks in its samples
_RELEASE = "0.14.2"  # that the samples are of


def searched(name: str) -> bool:
    """Whether the search looks at the page: not at lists of what has pages of its own, nor at notes for developers."""
    return not name.endswith(("/README.md", "/patches.md", "CHANGELOG.md"))


def pages(checkout: Path, index: Index) -> Iterator[tuple[str, str]]:
    """Path in the checkout and text of each page: with whole samples, and without links to what is no page."""
    paths = [path for pattern in PAGES for path in sorted(checkout.glob(pattern))]
    for path in paths:

        def linked(link: re.Match[str], page: Path = path) -> str:
            target = (page.parent / link[2]).resolve()
            if not target.exists():
                raise CommandError(f"{page.relative_to(checkout)} links to {link[2]}, which does not exist")
            return link[0] if target in paths else f"{link[1]} (`{target.relative_to(checkout)}` in the repository)"

        text = _LINK.sub(linked, path.read_text(encoding="utf-8"))
        name = str(path.relative_to(checkout))
        if name == "docs/patches.md":
            text = re.sub(r"^\| `(\w+)` \|", r"| [`\1`](../bugs/\1.md) |", text, flags=re.M)
        config = _CONFIG.search(text)
        text = _SAMPLE.sub(functools.partial(_whole, index=index, config=config[1] if config else ""), text)
        yield name, text


def _whole(sample: re.Match[str], index: Index, config: str) -> str:
    """The sample with all that the command prints; as it is written if the release is not available."""
    try:
        sources = index.sources(_RELEASE)
    except Unavailable:
        return sample[0]
    environment = {**os.environ, "DSFIX_DISABLE": "", "PYTHONPATH": str(sources), "COLUMNS": "80", "RANK": "0"}
    command = [sys.executable, *shlex.split(sample[2])]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "ds_config.json").write_text(config, encoding="utf-8")
        done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, check=False)
    log = "".join(re.findall(r"^\[dsfix\].*\n", done.stderr, re.M)) or done.stdout
    if done.returncode not in (OK, TROUBLE) or not log:
        raise CommandError(f"a sample cannot be made, {sample[1].strip()}: {done.stderr}")
    return f"```text\n{sample[1]}{log}```"
