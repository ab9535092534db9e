"""Modified copies of an installed package."""

from __future__ import annotations

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
