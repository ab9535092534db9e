"""Source text: the file of a module, and one function's lines in it, without importing anything.

Whole files are never parsed where one function will do: the definitions are found by their indentation.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from typing import TypeVar, Union

_T = TypeVar("_T")
FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef]

DEFINITION = re.compile(r"^([ \t]*)(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.M)
_BLOCK = re.compile(  # whatever opens a block: a def that is indented deeper than its neighbours stands in one of these
    r"^([ \t]*)(?:async[ \t]+)?"
    r"(?:(?:def|class)[ \t]+(\w+)|(?:if|elif|else|try|except|finally|for|while|with|match|case)\b)",
    re.M,
)
CLOSES = (")", "]", "}")
ACCESSORS = {"fget": "getter", "fset": "setter", "fdel": "deleter"}


@dataclass(frozen=True)
class Block:
    """One function as it stands in a file: `first` is its first line (decorators included), counted from 1."""

    path: str
    first: int
    text: str

    def parse(self) -> FunctionNode:
        """The function's syntax tree with the file's own line and column numbers, for this caller to change."""
        indented = self.text[0] in " \t"
        # an `if` in front keeps columns and multi-line strings as they are, which dedenting would not
        before = "\n" * (self.first - 2) + "if 1:\n" if indented else "\n" * (self.first - 1)
        body = ast.parse(before + self.text).body
        if indented and isinstance(body[0], ast.If):
            body = body[0].body
        if len(body) != 1 or not isinstance(body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
            raise SyntaxError(f"no single function at {self.path}:{self.first}")
        return body[0]

    @functools.lru_cache(maxsize=32)  # noqa: B019  # of all blocks together
    def tree(self) -> FunctionNode:
        """`parse`, to be read only: the patches of one function all look at the same tree."""
        return self.parse()


def module_file(name: str) -> str | None:
    """The file `import name` would execute, or None; runs no code of the package."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    walked = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        walked = f"{walked}.{part}"
        try:
            spec = PathFinder.find_spec(walked, list(spec.submodule_search_locations))
        except KeyError:  # a namespace package, whose parent has to be imported: half installed
            return None
    return _origin(spec)


def _origin(spec: ModuleSpec | None) -> str | None:
    return spec.origin if spec is not None and spec.has_location else None


def while_unchanged(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """Remembers what was read of the last few files, each until it changes on disk."""

    @functools.lru_cache(maxsize=8)
    def remembered(path: str, stamp: tuple[int, ...]) -> _T:
        return read(path)

    @functools.wraps(read)
    def current(path: str) -> _T:
        try:
            status = os.stat(path)
        except OSError:
            return remembered(path, ())
        return remembered(path, (status.st_mtime_ns, status.st_size))

    return current


@while_unchanged
def text_of(path: str) -> str | None:
    """The file's text, or None where there is no readable source (bytecode only, wrong encoding)."""
    try:
        with open(path, "rb") as file:
            text = importlib.util.decode_source(file.read())
    except (OSError, UnicodeDecodeError, SyntaxError):
        return None
    return None if "\0" in text else text


@while_unchanged
def _definitions(path: str) -> dict[str, list[int]]:
    """Dotted path of every def and class of the file (without ``<locals>``) -> its 0-based line numbers."""
    text = text_of(path) or ""
    found: dict[str, list[int]] = {}
    stack: list[tuple[int, str]] = []
    line, at = 0, 0
    for match in _BLOCK.finditer(text):
        indent = len(match.group(1).expandtabs())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, match.group(2) or ""))
        if match.group(2):
            line += text.count("\n", at, match.start())
            at = match.start()
            found.setdefault(".".join(name for _, name in stack if name), []).append(line)
    return found


@while_unchanged
def _lines(path: str) -> list[str]:
    return [line + "\n" for line in (text_of(path) or "").split("\n")]


def split_target(qualname: str) -> tuple[str, list[str], str]:
    """``Class.f.<locals>.g`` -> outermost function ``Class.f``, names below it ``["g"]``, property accessor or ""."""
    outer, _, inner = qualname.partition(".<locals>.")
    head, _, last = outer.rpartition(".")
    accessor = last if head and last in ACCESSORS else ""
    return head if accessor else outer, [n for n in inner.split(".") if n and n != "<locals>"], accessor


def find_blocks(path: str, qualname: str) -> list[Block]:
    """The definitions of `qualname`'s outermost function in the file, in order (several for if/else, overloads)."""
    outer, _, accessor = split_target(qualname)
    starts = _definitions(path).get(outer, ())
    if len(starts) != 1 and re.search(rf"\b(?:def|class)\s+{outer.rpartition('.')[2]}\b", text_of(path) or ""):
        starts = _parsed_definitions(path).get(outer, ())
    blocks = [block_at(path, _with_decorators(path, start) + 1) for start in starts]
    found = [block for block in blocks if block is not None]
    if accessor in ("fset", "fdel"):
        marker = f".{ACCESSORS[accessor]}"
        return [block for block in found if marker in block.text.split("def ", 1)[0]]
    return found


@while_unchanged
def _parsed_definitions(path: str) -> dict[str, list[int]]:
    """As `_definitions`, functions only, by parsing the file: for text in strings that looks like a definition."""
    found: dict[str, list[int]] = {}

    def walk(node: ast.AST, names: list[str]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = [*names, child.name]
                if not isinstance(child, ast.ClassDef):
                    found.setdefault(".".join(inner), []).append(child.lineno - 1)
                walk(child, inner)
            else:
                walk(child, names)

    try:
        walk(ast.parse(text_of(path) or ""), [])
    except SyntaxError:
        return {}
    return found


def _with_decorators(path: str, start: int) -> int:
    """The 0-based line of the first decorator of the definition at 0-based line `start`."""
    lines = _lines(path)
    indent = len(lines[start]) - len(lines[start].lstrip())
    first = line = start
    while line > 0:
        line -= 1
        stripped = lines[line].strip()
        here = len(lines[line]) - len(lines[line].lstrip())
        if stripped.startswith("@") and here == indent:
            first = line
        elif stripped and here <= indent and not stripped.startswith(("#", *CLOSES)):
            break
    return first


def block_at(path: str, first: int) -> Block | None:
    """The function whose first line (1-based, decorators included) is `first`, or None."""
    lines = _lines(path)
    if not 0 < first <= len(lines):
        return None
    start, end = first - 1, len(lines)
    indent = len(lines[start]) - len(lines[start].lstrip())
    defined = False
    for number in range(start, len(lines)):
        stripped = lines[number].strip()
        if not stripped or stripped.startswith(("#", *CLOSES)):
            continue
        if len(lines[number]) - len(lines[number].lstrip()) <= indent:
            if defined:
                end = number
                break
            defined = DEFINITION.match(lines[number]) is not None
    block = Block(path, first, "".join(lines[start:end]))
    try:
        block.tree()
        return block
    except (SyntaxError, IndexError):
        pass
    try:
        block = Block(path, first, "".join(inspect.getblock(lines[start:])))
        block.tree()
        return block
    except Exception:  # whatever tokenising a file that is no longer Python raises
        return None
