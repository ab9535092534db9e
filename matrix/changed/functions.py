"""The functions that differ between two releases, compared by syntax tree without docstrings and comments."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "deepspeed"
#: The statements of a module that are in no function or class, its imports left out.
MODULE = "<module>"
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_Statements = Sequence[tuple[str, int]]  # the code of each, without its blocks, and its line


@dataclass(frozen=True)
class Change:
    """A function, the own statements of a class, or MODULE. how: "added", "removed" or "changed".

    entry: its line in the new release, 0 for MODULE. lines: of its statements that are new or follow removed ones.
    """

    path: str
    name: str
    how: str
    entry: int = 0
    lines: frozenset[int] = frozenset()


def between(old: Path, new: Path) -> list[Change]:
    """What changed from one installed release to another, by module."""
    paths = {str(path.relative_to(root)) for root in (old, new) for path in (root / PACKAGE).rglob("*.py")}
    return [each for path in sorted(paths) for each in of_file(path, old, new)]


def of_file(path: str, old: Path, new: Path) -> list[Change]:
    """What changed in one file; path: below the releases' directories."""
    before, after = _scopes(old / path), _scopes(new / path)
    found = [Change(path, name, "removed") for name in before if name not in after]
    for name, statements in after.items():
        lines = frozenset(_differing(before.get(name, ()), statements)) - {0}
        if lines:
            found.append(Change(path, name, "changed" if name in before else "added", statements[0][1], lines))
    return found


def _differing(before: _Statements, after: _Statements) -> Iterator[int]:
    """The lines of the statements that are new; of the next one, or the first, where others were removed."""
    old, new = ([code for code, _ in each] for each in (before, after))
    for kind, _, _, first, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield from (line for _, line in after[first : max(end, first + 1)] or after[:1])


def _scopes(path: Path) -> dict[str, list[tuple[str, int]]]:
    """The statements of each function and class, and of the module. Those of one name are one."""
    found: dict[str, list[tuple[str, int]]] = {MODULE: [("", 0)]}

    def collect(scope: str, block: Sequence[Any], where: str) -> None:
        for node in block:
            if is_docstring(node):
                continue
            if isinstance(node, SCOPES):
                inner = node.name if scope == MODULE else f"{scope}.{node.name}"
                found.setdefault(inner, []).append((_head(node), node.lineno))
                collect(inner, node.body, "")
                continue
            if scope != MODULE or not isinstance(node, (ast.Import, ast.ImportFrom)):
                found[scope].append((f"{where} {_head(node)}", getattr(node, "lineno", 0)))
            for name in BLOCKS:
                collect(scope, getattr(node, name, ()), f"{where}.{name}")

    if path.is_file():
        collect(MODULE, ast.parse(path.read_bytes()).body, "")
    return found


def is_docstring(node: ast.AST) -> bool:
    """Whether it is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _head(node: ast.AST) -> str:
    """A statement without its blocks."""
    return ast.dump(type(node)(**{name: [] if name in BLOCKS else value for name, value in ast.iter_fields(node)}))
