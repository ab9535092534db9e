"""Records which statements of the patches a process runs: a finder instruments each patch as it is loaded.

Instrumented are the code of every Edit and the functions of a patch's file, or shared with others, that its changes
use; not `reproduce` and its helpers. Install it before dsfix is imported.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "dsfix.patches."
MARK = "_dsfix_mark"  # a builtin, because edited code runs in DeepSpeed's modules

#: patch id -> the numbers of its statements that were run.
run: dict[str, set[int]] = {}
#: patch id -> how many statements it has.
statements: dict[str, int] = {}


def install() -> None:
    """Instrument the patches loaded from now on."""
    setattr(builtins, MARK, mark)
    sys.meta_path[:0] = [Finder(_is_patch, _Loader), Finder("dsfix.catalogue.registry".__eq__, _RegistryLoader)]


def mark(patch_id: str, number: int) -> None:
    run[patch_id].add(number)


def _is_patch(name: str) -> bool:
    return name.startswith(_PACKAGE) and not name.rpartition(".")[2].startswith("_")


class Loader(SourceFileLoader):
    """Executes a module with marks."""

    def get_code(self, fullname: str) -> Any:  # never from the bytecode cache
        tree = self.marked(self.get_data(self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def marked(self, text: bytes) -> ast.Module:
        raise NotImplementedError


class Finder:
    """Has a loader execute the modules whose names are wanted. loader: makes it, of the module's name and file."""

    def __init__(self, wanted: Callable[[str], bool], loader: Callable[[str, str], Loader]) -> None:
        self._wanted, self._loader = wanted, loader

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if self._wanted(name) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = self._loader(name, spec.loader.path)
        return spec


class _Loader(Loader):
    def marked(self, text: bytes) -> ast.Module:
        if self.is_package(self.name):  # an area of patches
            return ast.parse(text)
        tree = _with_shared(ast.parse(text), Path(self.path).parent)
        marks = _Marks(self.name.rpartition(".")[2])
        for function in _used_by_changes(tree):
            marks.put_into(function.body)
        return tree

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        patch = getattr(module, "PATCH", None)
        if patch is not None:
            marks = _Marks(self.name.rpartition(".")[2])
            changes = tuple(
                dataclasses.replace(change, code=marks.of(change.code, replaces=change.replace is not None))
                if hasattr(change, "code")
                else change
                for change in patch.changes
            )
            module.PATCH = dataclasses.replace(patch, changes=changes)  # type: ignore[attr-defined]


class _RegistryLoader(Loader):
    """Has the engine load the file of each patch, with marks, instead of using cached edits, or caching these."""

    def marked(self, text: bytes) -> ast.Module:
        return ast.parse(text)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        vars(module)["patch"] = lambda summary, remember: vars(module)["entry"](summary).patch


class _Marks:
    """Inserts marks, numbered consecutively within a patch."""

    def __init__(self, patch_id: str) -> None:
        self._patch_id = patch_id
        run.setdefault(patch_id, set())
        statements.setdefault(patch_id, 0)

    def of(self, code: str, replaces: bool) -> str:
        """The code of an Edit with marks."""
        tree = ast.parse(textwrap.dedent(code))
        if replaces and len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
            marked = ast.Tuple([self._call(), tree.body[0].value], ast.Load())  # stays an expression
            return ast.unparse(ast.fix_missing_locations(ast.Subscript(marked, ast.Constant(1), ast.Load())))
        self.put_into(tree.body)
        return ast.unparse(ast.fix_missing_locations(tree))

    def put_into(self, body: list[ast.stmt]) -> None:
        """Insert a mark before each statement, also in blocks, but not before docstrings and effect reports."""
        marked: list[ast.stmt] = []
        for statement in body:
            if _only_tells(statement):
                marked.append(statement)
                continue
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                marked.append(ast.Expr(self._call()))
            for block in _blocks(statement):
                self.put_into(block)
            marked.append(statement)
        body[:] = marked

    def _call(self) -> ast.Call:
        number = statements[self._patch_id]
        statements[self._patch_id] += 1
        arguments: list[ast.expr] = [ast.Constant(self._patch_id), ast.Constant(number)]
        return ast.Call(ast.Name(MARK, ast.Load()), arguments, [])


def _only_tells(statement: ast.stmt) -> bool:
    from matrix.fingerprints import tells  # imports dsfix, which loads patches

    if isinstance(statement, ast.If):
        return all(map(_only_tells, [*statement.body, *statement.orelse]))
    return tells(statement) or getattr(statement, "module", "") == "dsfix.process.effects"


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, ast.ClassDef):
        for each in statement.body:
            yield from _blocks(each)
        return
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield block
    for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield handler.body


def _with_shared(tree: ast.Module, directory: Path) -> ast.Module:
    """The patch's source with imports from shared modules inlined, so that their statements are counted per patch."""
    body: list[ast.stmt] = []
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.level and (each.module or "").startswith("_"):
            there = ast.parse(Path(directory, *[".."] * (each.level - 1), f"{each.module}.py").read_bytes())
            body += [other for other in there.body if getattr(other, "module", "") != "__future__"]
        else:
            body.append(each)
    return ast.Module(body, tree.type_ignores)


def _used_by_changes(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions, at top level or in classes, that the changes of PATCH use."""
    defined: dict[str, ast.stmt] = {}
    for each in tree.body:
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
            defined[each.name] = each
        elif isinstance(each, ast.Assign):
            defined.update({target.id: each for target in each.targets if isinstance(target, ast.Name)})
    reached: dict[str, ast.stmt] = {}
    patch = getattr(defined.get("PATCH"), "value", None)
    waiting = [name for each in getattr(patch, "keywords", ()) if each.arg == "changes" for name in _names(each)]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in defined or name == "reproduce":
            continue
        reached[name] = defined[name]
        waiting += _names(defined[name])
    return [
        function
        for each in tree.body
        if each in reached.values()
        for function in ([each] if isinstance(each, ast.FunctionDef) else getattr(each, "body", []))
        if isinstance(function, ast.FunctionDef)
    ]


def _names(node: ast.AST, bound: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names that a statement uses, including those imported in the text of an Edit; not its parameters, nor those
    in docstrings and effect reports."""
    if isinstance(node, ast.stmt) and _only_tells(node):
        return
    if isinstance(node, ast.keyword) and node.arg in ("effect", "when"):
        return
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        bound |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    if isinstance(node, ast.Name) and node.id not in bound:
        yield node.id
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from node.value.replace(",", " ").replace("(", " ").split()
    for each in ast.iter_child_nodes(node):
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
            yield from _names(each, bound)
