"""The names that a file imports at its top level.

Python 3.11 and later compile `name.attribute()` in another way where the file imports `name`: to get the file's own
bytecode from one function of it, these names have to be known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .source import CLOSES, DEFINITION, text_of, while_unchanged

_IMPORT = re.compile(r"^(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+(?:\([^)]*\)|[^\n\\#;]*(?:\\\n[^\n\\#;]*)*)", re.M)
_IMPORT_INDENTED = re.compile(_IMPORT.pattern.replace("^", "^[ \t]+", 1), re.M)


@while_unchanged
def quick_imported_names(path: str) -> frozenset[str]:
    """The names that the file imports at its top level, `if` and `try` included, as far as its indentation tells."""
    text, names = text_of(path) or "", set[str]()
    for match in _IMPORT.finditer(text):
        names.update(_bound(match.group()))
    for match in _IMPORT_INDENTED.finditer(text):
        if _inside_no_definition(text, match.start()):
            names.update(_bound(match.group().strip()))
    return frozenset(names)


def _bound(statement: str) -> Iterator[str]:
    try:
        body = ast.parse(statement).body
    except SyntaxError:
        return
    for node in body:
        yield from _names(node)


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names if alias.name != "*")


def _inside_no_definition(text: str, at: int) -> bool:
    """Whether only `if`, `try`, `with` and the like stand around the indented line that begins at `at`."""
    indent = None
    while at >= 0:
        end = text.find("\n", at)
        line = text[at : end if end >= 0 else len(text)]
        stripped = line.lstrip()
        here = len(line) - len(stripped)
        if indent is None or (here < indent and stripped and not stripped.startswith(("#", *CLOSES))):
            if DEFINITION.match(line):
                return False
            indent = here
            if here == 0:
                return True
        at = text.rfind("\n", 0, max(0, at - 1)) + 1 if at else -1
    return True


@while_unchanged
def parsed_imported_names(path: str) -> frozenset[str]:
    """As `quick_imported_names`, by parsing the file: for text in strings that looks like an import."""
    names = set[str]()
    stack: list[ast.AST] = []
    try:
        stack.append(ast.parse(text_of(path) or ""))
    except SyntaxError:
        return frozenset()
    while stack:
        node = stack.pop()
        names.update(_names(node))
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(node))
    return frozenset(names)
