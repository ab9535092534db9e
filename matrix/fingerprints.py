"""Fingerprints of a patch, which records use to detect changes.

Text does not count: title, docstrings, comments, and the messages of errors and warnings; nor does the patch's folder.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import NamedTuple

from dsfix.catalogue.registry import Entry
from dsfix.patch import Change, Edit, Source

_TELLING = ("took_effect", "ran")
_MESSAGES = (
    *("BugPresent", "CannotTell", "AssertionError", "ValueError", "RuntimeError"),
    *("warn", "warn_once", "warn_repeatedly"),
)
_FOLDER = re.compile(r"\b(dsfix\.patches\.)\w+\.(?=\w)")
_DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Fingerprint(NamedTuple):
    """declaration: versions, changes, their helpers and the evidence. reproduction: the job."""

    declaration: str
    reproduction: str


def of(entry: Entry) -> Fingerprint:
    """Both fingerprints of the patch in its current version, which run proofs record."""
    defined = _defined(entry.module)
    return Fingerprint(_digest(_declared(entry, defined)), _digest(_reproduced(entry, defined)))


def of_changes(entry: Entry) -> str:
    """The fingerprint of only the patch's changes and their helpers, which bystanders record."""
    defined = _defined(entry.module)
    parts = (" ".join(_parts(change)) for change in entry.patch.changes)
    return _digest((*parts, *_sources(_helpers(entry), defined)))


def _declared(entry: Entry, defined: dict[str, ast.stmt]) -> Iterator[str]:
    patch = entry.patch
    yield from (f"{name} {specifiers}" for name, specifiers in sorted(patch.affects.items()))
    for each in (*patch.changes, *patch.present, "fixed", *patch.fixed):
        yield each if isinstance(each, str) else " ".join(_parts(each))
    yield from _sources(_helpers(entry), defined)


def _parts(each: Change | Source) -> Iterator[str]:
    yield f"{type(each).__name__} {each.target}"
    if isinstance(each, Edit):
        place = "after" if each.after is not None else "before" if each.before is not None else "replace"
        yield f"{place} {each.count}"
        yield _normal(each.anchor)
        yield _normal(_FOLDER.sub(r"\1", each.code_with_imports))
    if isinstance(each, Source):
        yield _normal(each.code)


def _helpers(entry: Entry) -> list[str]:
    """The functions that its changes use: factories, and names in the text of an Edit."""
    names = [getattr(value, "__name__", "") for change in entry.patch.changes for value in vars(change).values()]
    for change in entry.patch.changes:
        if isinstance(change, Edit):
            names += _names(ast.parse(change.code_with_imports))
    return names


def _reproduced(entry: Entry, defined: dict[str, ast.stmt]) -> Iterator[str]:
    yield f"{entry.patch.device} {entry.patch.ranks}"
    yield from _sources(["reproduce"], {name: each for name, each in defined.items() if name != "PATCH"})


def _defined(module: ModuleType) -> dict[str, ast.stmt]:
    """The file's top-level definitions by name, and those that it shares, without docstrings and messages."""
    tree = ast.parse(inspect.getsource(module))
    shared = dict(_shared(tree, module.__package__ or ""))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            del node.body[0]
    _silence(tree)
    _Unimported().visit(tree)
    definitions: dict[str, ast.stmt] = {}
    for each in tree.body:
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        definitions.update({target.id: each for target in targets if isinstance(target, ast.Name)})
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
            definitions[each.name] = each
        elif isinstance(each, (ast.Import, ast.ImportFrom)):
            definitions.update({alias.asname or alias.name.partition(".")[0]: each for alias in each.names})
    return {**definitions, **shared}


def _shared(tree: ast.Module, package: str) -> Iterator[tuple[str, ast.stmt]]:
    """The definitions imported from the package's shared modules, by name, with their source."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level and (node.module or "").startswith("_"):
            there = _defined(importlib.import_module(f"{'.' * node.level}{node.module}", package))
            for alias in node.names:
                yield alias.name, ast.Expr(ast.Constant("\0".join(_sources([alias.name], there))))


def _silence(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _MESSAGES:
            node.args = []
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "compare":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in ("after", "what")]
            for wrong in node.args:
                if isinstance(wrong, ast.Dict):
                    wrong.keys = [ast.Constant(number) for number in range(len(wrong.keys))]
        elif isinstance(node, ast.Assert):
            node.msg = None
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.JoinedStr):
            node.value = None


def tells(node: ast.AST) -> bool:
    """Whether it is a statement that only reports an effect."""
    return isinstance(node, ast.Expr) and getattr(getattr(node.value, "func", None), "id", "") in _TELLING


class _Unimported(ast.NodeTransformer):
    """Removes effect reports, and imports from dsfix (whose modules may move) and of code that reproductions share,
    which functions import.
    """

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        shared = node.level and node.col_offset
        return None if shared or (node.module or "").partition(".")[0] == "dsfix" else node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if tells(node) else node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        return node if node.body or node.orelse else None


def _sources(names: Iterable[str], defined: dict[str, ast.stmt]) -> Iterator[str]:
    """The source of these definitions and of everything in the file that they use, in the file's order."""
    reached: set[str] = set()
    waiting = [name for name in names if name in defined]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [each for each in _names(defined[name]) if each in defined and each != "PATCH"]
    ordered = dict.fromkeys(id(defined[name]) for name in defined if name in reached)
    statements = {id(each): each for each in defined.values()}
    yield from (ast.unparse(statements[each]) for each in ordered)


def _names(node: ast.AST) -> list[str]:
    """The names that a piece of code uses, including imports."""
    names = []
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            names.append(each.id)
        elif isinstance(each, ast.alias):
            names.append(each.name)
    return names


def _normal(code: str) -> str:
    return ast.unparse(ast.parse(textwrap.dedent(code)))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
