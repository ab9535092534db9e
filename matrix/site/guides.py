"""The hand-written pages of the repository as pages of the site."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsfix.cli.exits import CommandError
from matrix.sdists import Index, Unavailable
from matrix.site import samples

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "dsfix/*/README.md", "matrix/**/README.md")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
_BLOCK = re.compile(r"^```(\w*)\n([\s\S]*?)^```$", re.M)
_RELEASE = "0.14.2"  # that samples are of which name no other


def searched(name: str) -> bool:
    """Whether the search looks at the page: not at lists of what has pages of its own, nor at notes for developers."""
    return not name.endswith(("/README.md", "/patches.md", "CHANGELOG.md"))


def pages(checkout: Path, index: Index, by_tests: Mapping[str, str]) -> Iterator[tuple[str, str]]:
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
        blocks = list(_BLOCK.finditer(text))
        with ThreadPoolExecutor(2) as pool:
            made = pool.map(functools.partial(_whole, blocks, index, by_tests), range(len(blocks)))
            yield name, _BLOCK.sub(lambda _, made=made: next(made), text)  # type: ignore[misc]


def _whole(blocks: Sequence[re.Match[str]], index: Index, by_tests: Mapping[str, str], place: int) -> str:
    """A block of a page; a sample with all that is shown, or as it is written if the release is not available."""
    language, text = blocks[place].groups()
    if language:
        return blocks[place][0]
    if not text.startswith("$ "):
        return f"```text\n{by_tests.get(text, text)}```"
    configs = [block[2] for block in blocks[:place] if block[1] == "json"]
    release = re.search(r"^ds_config.json: deepspeed ([\d.]+\d)", text, re.M)
    try:
        sources = index.sources(release[1] if release else _RELEASE)
    except Unavailable:
        return f"```text\n{text}```"
    return f"```text\n{samples.by_command(text, configs[-1] if configs else '', sources)}```"
