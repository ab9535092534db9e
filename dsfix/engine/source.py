"""Source text: finds a function's lines in a module's file, without importing anything.

Whole files are not parsed if one function suffices: docs/design.md says why.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import hashlib
import importlib.util
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar, Union

from ..versions import read_file

_T = TypeVar("_T")
FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef]
_DEFINITION = re.compile(r"(?:async[ \t]+)?def\b|class\b")
# the alternatives in this order, and no ^, make it many times as fast
_DEFINED = re.compile(r"\n([ \t]*)(?:a|d|c)(?:sync[ \t]+def|ef|lass)[ \t]+(\w+)")
_IMPORT = r"(?:from[ \t]+\S+[ \t]+)?import\b[ \t]*(\([^)]*\)|(?:\\\n|.)*)"
_CONTINUES = "#)]}"  # a line that begins with one of these does not end a block
parsed_functions: dict[FunctionSource, FunctionNode] = {}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BLOCK_FIELDS = ("body", "orelse", "finalbody")  # the fields of a statement that hold statements
NESTING_FIELDS = (*BLOCK_FIELDS, "handlers", "cases")


class FunctionSource(NamedTuple):
    """One function in a file: `first` is its first line (decorators included), counted from 1."""

    path: str
    first: int
    text: str

    def parse(self) -> FunctionNode:
        """The function's syntax tree with the file's line and column numbers, for the caller to change."""
        indented = self.text[0] in " \t"
        # an `if` in front keeps columns and multi-line strings, which dedenting would not
        before = "\n" * (self.first - 2) + "if 1:\n" if indented else "\n" * (self.first - 1)
        body = ast.parse(before + self.text).body
        if indented and isinstance(body[0], ast.If):
            body = body[0].body
        if len(body) != 1 or not isinstance(body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
            raise SyntaxError(f"no single function at {self.path}:{self.first}")
        return body[0]

    def tree(self) -> FunctionNode:
        """`parse`, read-only and shared by all patches of the function."""
        return parsed_functions.get(self) or parsed_functions.setdefault(self, self.parse())


def cached_until_changed(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """Caches what was read from a file until the file changes or is forgotten."""

    @functools.lru_cache(maxsize=64)
    def remembered(path: str, stamp: tuple[int, ...]) -> _T:
        return read(path)

    @functools.wraps(read)
    def current(path: str) -> _T:
        try:
            status = os.stat(path)
        except OSError:
            return remembered(path, ())
        return remembered(path, (status.st_mtime_ns, status.st_size))

    current.forget = remembered.cache_clear  # type: ignore[attr-defined]
    return current


@cached_until_changed
def text_of(path: str) -> str | None:
    """The file's text, or None if it has no readable source (bytecode only, wrong encoding)."""
    try:
        text = importlib.util.decode_source(read_file(path))
    except (OSError, ImportError, UnicodeDecodeError, SyntaxError):
        return None
    return None if "\0" in text else text


@cached_until_changed
def digest_of(path: str) -> bytes:
    return hashlib.blake2b((text_of(path) or "").encode(errors="surrogatepass"), digest_size=16).digest()


@cached_until_changed
def whole_tree(path: str) -> ast.Module:
    """The file's syntax tree, read-only; an empty one if it does not parse."""
    try:
        return ast.parse(text_of(path) or "")
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


@cached_until_changed
def _lines(path: str) -> list[str]:
    return io.StringIO((text_of(path) or "") + "\n").readlines()


def split_target(qualname: str) -> tuple[str, list[str]]:
    """``Class.f.<locals>.g`` -> the outermost function ``Class.f`` and the names below it, ``["g"]``."""
    outer, _, inner = qualname.partition(".<locals>.")
    return outer, [name for name in inner.split(".") if name and name != "<locals>"]


def find_blocks(path: str, qualname: str) -> list[FunctionSource]:
    """The definitions of `qualname`'s outermost function in the file, in order (several for if/else, overloads)."""
    outer = split_target(qualname)[0]
    starts = _definitions(path).get(outer, ())
    firsts = [_first_decorator_line(_lines(path), start) + 1 for start in starts]
    if len(starts) != 1 and re.search(rf"\b(?:def|class)\s+{outer.rpartition('.')[2]}\b", text_of(path) or ""):
        # text in strings may look like a definition
        firsts = [_first_line(node) for name, node in _functions(whole_tree(path)) if name == outer]
    return [block for block in map(functools.partial(block_at, path), firsts) if block is not None]


@cached_until_changed
def _definitions(path: str) -> dict[str, list[int]]:
    """Dotted path of every def and class of the file (without ``<locals>``) -> its 0-based lines, by indentation."""
    text = "\n" + (text_of(path) or "")
    definitions: dict[str, list[int]] = {}
    stack: list[tuple[int, str]] = []
    line, at = 0, 0
    for match in _DEFINED.finditer(text):
        indent = len(match[1].expandtabs())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, match[2]))
        line += text.count("\n", at, match.start())
        at = match.start()
        definitions.setdefault(".".join(name for _, name in stack), []).append(line)
    return definitions


def _functions(node: ast.AST, above: str = "") -> Iterator[tuple[str, FunctionNode]]:
    for child in ast.iter_child_nodes(node):
        name = f"{above}.{child.name}".lstrip(".") if isinstance(child, SCOPES) else above
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield name, child
        yield from _functions(child, name)


def _first_line(node: FunctionNode) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def block_at(path: str, first: int) -> FunctionSource | None:
    """The function whose first line (1-based, decorators included) is `first`, or None."""
    lines = _lines(path)
    if not 0 < first <= len(lines):
        return None
    block = FunctionSource(path, first, "".join(lines[first - 1 : _line_after(lines, first - 1)]))
    with contextlib.suppress(SyntaxError, IndexError):
        block.tree()
        return block
    for _, node in _functions(whole_tree(path)):  # it contains a dedented string
        if _first_line(node) == first and node.end_lineno is not None:
            return FunctionSource(path, first, "".join(lines[first - 1 : node.end_lineno]))
    return None


def _first_decorator_line(lines: list[str], definition: int) -> int:
    """The 0-based line of the first decorator of a definition."""
    indent, first = _indent(lines[definition]), definition
    for number, stripped in _dedents(lines, range(definition - 1, -1, -1), indent):
        if not (stripped.startswith("@") and _indent(lines[number]) == indent):
            break
        first = number
    return first


def _line_after(lines: list[str], first: int) -> int:
    """The 0-based line after the definition, or its decorators, at line `first`, by indentation."""
    defined = False
    for number, stripped in _dedents(lines, range(first, len(lines)), _indent(lines[first])):
        if defined:
            return number
        defined = _DEFINITION.match(stripped) is not None
    return len(lines)


def _dedents(lines: list[str], numbers: Iterable[int], indent: int) -> Iterator[tuple[int, str]]:
    """Those of the lines that are indented by `indent` or less and end a block there, stripped."""
    for number in numbers:
        if not lines[number][: indent + 1].isspace():  # true for nearly all
            stripped = lines[number].strip()
            if stripped[0] not in _CONTINUES:
                yield number, stripped


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@cached_until_changed
def top_level(path: str) -> ast.Module:
    """The file's syntax tree, read-only, without its functions and classes."""
    return _without_definitions(whole_tree(path))


def _without_definitions(node: _T) -> _T:
    node = copy.copy(node)
    for name in NESTING_FIELDS:
        if hasattr(node, name):
            kept = [each for each in getattr(node, name) if not isinstance(each, SCOPES)]
            setattr(node, name, [_without_definitions(each) for each in kept])
    return node


def forget(texts: bool) -> None:
    """Drops the trees that have been read, about 100 kB per function; texts: also everything else, about 10 MB."""
    parsed_functions.clear()
    for each in (whole_tree, top_level, *((text_of, _lines, _definitions) if texts else ())):
        each.forget()


@cached_until_changed
def imports(path: str) -> frozenset[str]:
    """The names that the file imports at its top level, as far as its text shows (indented: only above functions)."""
    text = "\n" + (text_of(path) or "")
    above = re.split(r"\n(?:def|class|async|@)", text, maxsplit=1)[0]
    import_lists = (*re.findall(rf"\n{_IMPORT}", text), *re.findall(rf"\n[ \t]+{_IMPORT}", above))
    names = (name.split() for import_list in import_lists for name in re.sub(r"#.*|[()\\]", "", import_list).split(","))
    return frozenset(name[-1].partition(".")[0] for name in names if name) - {"*"}


def exact_imports(path: str) -> frozenset[str]:
    """The names that the file imports anywhere outside functions and classes, from its syntax tree."""
    return frozenset(_imported_names(whole_tree(path)))


def _imported_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names if alias.name != "*")
    elif not isinstance(node, (*SCOPES, ast.expr)):
        for child in ast.iter_child_nodes(node):
            yield from _imported_names(child)
