"""The fingerprint of a scenario: of its function and of everything in scenarios/ that it uses, in any file.

Names and files of what it uses, imports, docstrings and annotations do not count; nor do the settings that it is run
with, which are part of a job's id.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import symtable
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PACKAGE = "matrix.bystanders.scenarios"
_DECORATORS = ("scenario(", "settings(")  # ignored

Place = tuple[str, str]  # a module, and a name in it or "" for the module


@functools.cache
def of(module: str, name: str, reference: bool) -> str:
    """reference: whether the scenario's results are compared with plain PyTorch's."""
    return _digest(f"{reference} {ast.unparse(_resolved((module, name)))}")


@functools.cache
def _resolved(place: Place) -> Any:
    """The definition with everything it uses inlined. Direct recursion is allowed, mutual recursion is not."""
    module, name = place
    text = ast.unparse(_defined(module)[name])
    used = frozenset(_globals(symtable.symtable(text, name, "exec")))
    bare = _Bare().visit(ast.parse(text).body[0])
    if isinstance(bare, ast.Expr):
        bare = bare.value
    else:
        bare.name = "_"
    return _Resolved(place, used).visit(bare)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@functools.cache
def _defined(module: str) -> Mapping[str, ast.AST]:
    """The functions, classes and values of constants of a module, by name."""
    definitions: dict[str, ast.AST] = {}
    for each in _tree(module).body:
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
            definitions[each.name] = each
        elif isinstance(each, (ast.Assign, ast.AnnAssign)) and each.value is not None:
            target = each.targets[0] if isinstance(each, ast.Assign) else each.target
            if isinstance(target, ast.Name):
                definitions[target.id] = each.value
            elif isinstance(target, ast.Tuple):
                for number, one in enumerate(target.elts):
                    definitions[ast.unparse(one)] = ast.Subscript(each.value, ast.Constant(number), ast.Load())
    return definitions


@functools.cache
def _imported(module: str) -> Mapping[str, Place]:
    """What the module imports from scenarios/, by name."""
    imports: dict[str, Place] = {}
    for each in _tree(module).body:
        if isinstance(each, ast.ImportFrom) and each.module == _PACKAGE:
            imports.update({one.asname or one.name: (f"{_PACKAGE}.{one.name}", "") for one in each.names})
        elif isinstance(each, ast.ImportFrom) and str(each.module).startswith(f"{_PACKAGE}."):
            imports.update({one.asname or one.name: (str(each.module), one.name) for one in each.names})
    return imports


def _tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    return ast.parse(Path(str(spec.origin)).read_bytes())


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    """The names that a piece of code uses and does not define."""
    top = table.get_type() == "module"
    yield from (
        get_symbol.get_name()
        for get_symbol in table.get_symbols()
        if get_symbol.is_referenced() and (top or get_symbol.is_global())
    )
    for child in table.get_children():
        yield from _globals(child)


class _Bare(ast.NodeTransformer):
    """Removes what the fingerprint ignores."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return ast.Pass()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            others = [each for each in node.decorator_list if not ast.unparse(each).startswith(_DECORATORS)]
            node.decorator_list = others
        elif isinstance(node, ast.arg):
            node.annotation = None
        node = self.generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not isinstance(each, ast.Pass)] or [ast.Pass()]  # type: ignore[attr-defined]
        return node


class _Resolved(ast.NodeTransformer):
    """Replaces names by constants, and by digests of functions and classes."""

    def __init__(self, place: Place, used: frozenset[str]) -> None:
        self._place, self._module, self._used = place, place[0], used

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        base = ast.unparse(node.value)
        module, name = _imported(self._module).get(base, ("", "")) if base in self._used else ("", "")
        return self._code((module, node.attr)) if module and not name else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self._used:
            return node
        place = _imported(self._module).get(node.id, (self._module, node.id))
        return self._code(place) if place[1] in _defined(place[0]) else node

    def _code(self, place: Place) -> ast.expr:
        if place == self._place:
            return ast.Name("_", ast.Load())
        definition = _resolved(place)
        return (
            definition
            if isinstance(definition, ast.expr)
            else ast.Name(f"_{_digest(ast.unparse(definition))}", ast.Load())
        )
