"""Modified copies of an installed package, and applying a diff to a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def copy(directory: Path, root: Path, package: str, changed: Mapping[str, str]) -> None:
    """Copies `package` from `root` to `directory` by links, except for the changed files: relative path -> text."""
    _mirror(directory / package, root / package, {tuple(path.split("/")[1:]): text for path, text in changed.items()})
    for described in root.glob(f"{package}-*.dist-info"):
        (directory / described.name).symlink_to(described)


def _mirror(directory: Path, original: Path, changed: Mapping[tuple[str, ...], str]) -> None:
    directory.mkdir(parents=True)
    names = {each.name for each in original.iterdir()} if original.is_dir() else set()
    for name in names | {path[0] for path in changed}:
        below = {path[1:]: text for path, text in changed.items() if path[0] == name}
        if () in below:
            (directory / name).write_text(below[()], encoding="utf-8")
        elif below:
            _mirror(directory / name, original / name, below)
        else:
            (directory / name).symlink_to(original / name)


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def patched(root: Path, diff: str) -> dict[str, str]:
    """path -> new text of every file that a unified diff changes."""
    found: dict[str, list[str]] = {}
    path, shift, at = "", 0, 0
    for line in diff.splitlines():
        hunk = _HUNK.match(line)
        if line.startswith("--- a/"):
            path, shift = line[6:], 0
            found[path] = (root / path).read_text(encoding="utf-8").split("\n")
        elif line.startswith("+++ "):
            continue
        elif hunk:
            at = int(hunk[1]) - (hunk[2] != "0") + shift
        elif line.startswith("+"):
            found[path].insert(at, line[1:])
            at, shift = at + 1, shift + 1
        elif line.startswith("-"):
            assert found[path][at] == line[1:], f"the diff does not fit {path}:{at + 1}"
            del found[path][at]
            shift -= 1
        else:
            assert found[path][at] == line[1:], f"the diff does not fit {path}:{at + 1}"
            at += 1
    return {path: "\n".join(lines) for path, lines in found.items()}
