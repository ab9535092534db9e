"""What a piece of code of a patch, or of the lab, refers to.

Only what is dsfix's own (or the plug-in's whose patch it is) is followed; other packages are imported as they were.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from typing import Union

import dsfix.lab  # noqa: F401  the packages are looked into
from dsfix.cli.printing.edits import Unwritable
from dsfix.engine.source import text_of
from matrix.pull_requests.text import Change, Text, without_annotations, without_telling

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Symbol:
    """Something that a module of dsfix defines: "Lab.initialize" for a method of the lab, "" for the module itself."""

    module: str
    name: str = ""


@dataclass(frozen=True)
class Written:
    """`text` takes its place, and needs `imports`. module: whether it is one, so that a variable is an alias of it."""

    text: str
    imports: tuple[str, ...] = ()
    module: bool = False


Meaning = Union[Symbol, Written, None]

LAB = "dsfix.lab.session"  # the module of the class Lab, whose instance a reproduction gets as `lab`
ACCELERATOR = "from deepspeed.accelerator import get_accelerator"
TMP = Written("tmp_path")
_THE_LAB, _SKIP = Symbol(LAB, "the lab"), Written("pytest.skip")
_TORCH = Written("torch", ("import torch",), module=True)
_DIST = Written("dist", ("import deepspeed.comm as dist",), module=True)
_OF_LAB: Mapping[str, Meaning] = {
    "torch": _TORCH,
    "deepspeed": Written("deepspeed", ("import deepspeed",), module=True),
    "device": Written("get_accelerator().current_device_name()", (ACCELERATOR,)),
    "rank": Written("dist.get_rank()", _DIST.imports),
    "world_size": Written("dist.get_world_size()", _DIST.imports),
    "tmp": TMP,
    "models": Symbol("dsfix.lab.models"),
    "reference": Symbol("dsfix.lab.reference"),
    "initialize": Symbol(LAB, "Lab.initialize"),
    "parameters": Symbol(LAB, "Lab.parameters"),
}
_EMULATED = "it needs the emulated device, which decides when the work on a stream is done; on a GPU that is chance"
_MISSING = {"emulated": _EMULATED, "late_streams": _EMULATED}
_CHECKPOINTS = "dsfix.patches.checkpoint._checkpoints"
_OLDER = [Symbol(_CHECKPOINTS, name) for name in ("require_universal_zero3", "load_whole_files")]  # about old releases
_VOCABULARY: Mapping[str, Meaning] = {"BugPresent": Written("AssertionError"), "CannotTell": _SKIP}
_HERE = ast.unparse(ast.parse('"cuda" if torch.cuda.is_available() else "cpu"'))
_HERE_MEANS = Written("get_accelerator().device_name()", (ACCELERATOR,))


class Module:
    """A module of dsfix: what it defines and imports, without annotations."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.text = name, Text(without_annotations(without_telling(source)))
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, ast.stmt] = {}
        for node in self.text.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports.update(dict.fromkeys(binds(node), node))
            elif isinstance(node, ast.Assign):
                self.definitions.update(dict.fromkeys(map(ast.unparse, _parts(node.targets[0])), node))
            else:
                self.definitions.update(dict.fromkeys(binds(node), node))

    def definition(self, name: str) -> ast.stmt:
        """The statement that defines the name, or the method of a class."""
        outer, _, inner = name.partition(".")
        node = self.definitions[outer]
        if inner and isinstance(node, ast.ClassDef):
            return next(each for each in node.body if inner in binds(each))
        return node


@functools.lru_cache(maxsize=64)
def module(name: str) -> Module:
    source = text_of(_file(name) or "")
    if source is None:
        raise Unwritable(f"the source of {name} cannot be read")
    return Module(name, source)


def _file(name: str) -> str | None:
    """The file of a module in a package that has been imported; it may import torch, and is not imported itself."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    package = sys.modules.get(name.rpartition(".")[0])
    spec = PathFinder.find_spec(name, getattr(package, "__path__", []))
    return spec.origin if spec else None


@dataclass
class ReadCode:
    """What a definition refers to.

    meanings: of names, with the f-string that they are in. lab: calls that pass the lab on, as which argument and to
    what; too. changes: what does not depend on names. orphans: names in statements that are not needed elsewhere; None
    if there are none such. local: names bound in its functions.
    """

    node: ast.AST
    text: Text
    meanings: list[tuple[ast.expr, Symbol | Written, ast.JoinedStr | None]] = field(default_factory=list)
    lab: list[tuple[ast.Call, int, Meaning, ast.JoinedStr | None]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    orphans: set[str] | None = None
    local: set[str] = field(default_factory=set)

    @property
    def symbols(self) -> Iterator[Symbol]:
        return (meaning for _, meaning, _ in self.meanings if isinstance(meaning, Symbol))


class Reader(ast.NodeVisitor):
    """Reads one definition. patch: whose fields are written in place of `PATCH.…`, if given."""

    def __init__(self, of: Module, top: str, patch: object = None) -> None:
        self._of, self._tops, self._patch = of, {"dsfix", top}, patch
        self._scopes: list[dict[str, Meaning]] = []
        self._joined: ast.JoinedStr | None = None
        self._left_out: set[ast.AST] = set()

    def read(self, node: ast.AST, lab: str = "lab") -> ReadCode:
        self._lab, self._found = lab, ReadCode(node, self._of.text)
        self.visit(node)
        return self._found

    # ---- meanings

    def _meaning(self, node: ast.AST) -> Meaning:
        if isinstance(node, ast.Name):
            for scope in reversed(self._scopes):
                if node.id in scope:
                    return scope[node.id]
            return self._global(self._of, node.id)
        if isinstance(node, ast.Attribute):
            if self._patch is not None and isinstance(node.value, ast.Name) and node.value.id == "PATCH":
                return Written(repr(getattr(self._patch, node.attr)))
            return self._attribute(self._meaning(node.value), node.attr)
        return None

    def _global(self, of: Module, name: str) -> Meaning:
        if name in of.definitions:
            return Symbol(of.name, name)
        return self._imported(of, of.imports[name], name) if name in of.imports else None

    def _imported(self, of: Module, node: ast.stmt, name: str) -> Meaning:
        if isinstance(node, ast.Import):
            alias = next(each for each in node.names if name in (each.asname, each.name.partition(".")[0]))
            if self._own(alias.name):
                return Symbol(alias.name)
            return Written(name, (ast.unparse(ast.Import([alias])),), module=alias.name == "torch")
        assert isinstance(node, ast.ImportFrom)
        alias = next(each for each in node.names if name == (each.asname or each.name))
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), of.name.rpartition(".")[0])
        if base == "dsfix.patch":
            return _VOCABULARY.get(alias.name, Symbol(base, alias.name))
        if not self._own(base):
            return Written(name, (ast.unparse(ast.ImportFrom(base, [alias], 0)),))
        return self._attribute(Symbol(base), alias.name)

    def _own(self, name: str) -> bool:
        return name.partition(".")[0] in self._tops

    def _attribute(self, of: Meaning, name: str) -> Meaning:
        if of is _THE_LAB:
            return _OF_LAB.get(name)
        if isinstance(of, Symbol) and not of.name:
            inner = f"{of.module}.{name}"
            return Symbol(inner) if _file(inner) else self._global(module(of.module), name)
        return _DIST if of == _TORCH and name == "distributed" else None

    # ---- scopes

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        for outer in (*getattr(node, "decorator_list", ()), *arguments.defaults, *arguments.kw_defaults):
            if outer is not None:
                self.visit(outer)
        named = (each.arg for each in ast.walk(arguments) if isinstance(each, ast.arg))
        scope: dict[str, Meaning] = {each: _THE_LAB if each == self._lab else None for each in named}
        self._scopes.append(scope)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._bind(body, scope)
        self._found.local |= {name for name, meaning in scope.items() if meaning is None}
        for each in body:
            self.visit(each)
        self._scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function

    def _bind(self, body: Sequence[ast.AST], scope: dict[str, Meaning]) -> None:
        """The names that the body binds; those that stand for something of dsfix, or torch, with their meaning."""
        inside = list(_of_scope(body))
        stores = [name for node in inside for name in binds(node)]
        scope.update(dict.fromkeys(stores))
        for node in inside:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                meanings = {name: self._imported(self._of, node, name) for name in binds(node)}
                if not any(isinstance(meaning, Written) and meaning.imports for meaning in meanings.values()):
                    scope.update(meanings)
                    self._leave_out(node)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._bind_aliases(node, stores, scope)

    def _bind_aliases(self, node: ast.Assign, stores: list[str], scope: dict[str, Meaning]) -> None:
        names, values = _parts(node.targets[0]), _parts(node.value)
        if len(names) != len(values) or not all(isinstance(each, ast.Name) for each in names):
            names, values = [node.targets[0]], [node.value]
        numbers = []
        for number, (name, value) in enumerate(zip(names, values)):
            meaning = self._meaning(value) if isinstance(name, ast.Name) and stores.count(name.id) == 1 else None
            if isinstance(name, ast.Name) and (isinstance(meaning, Symbol) or getattr(meaning, "module", False)):
                scope[name.id] = meaning
                numbers.append(number)
        if len(numbers) == len(names):
            self._leave_out(node)
        elif numbers:
            self._left_out |= {node.targets[0], *(values[number] for number in numbers)}
            for parts in (names, values):
                self._found.changes += _without_elements(self._found.text, parts, numbers)

    def _leave_out(self, node: ast.stmt) -> None:
        self._left_out.add(node)
        self._found.changes.append((*self._found.text.lines(node), ""))
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        self._found.orphans = names | (self._found.orphans or set())

    def _comprehension(self, node: ast.AST) -> None:
        self._scopes.append({name: None for each in ast.walk(node) for name in binds(each)})
        self._found.local |= self._scopes[-1].keys()
        self.generic_visit(node)
        self._scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    # ---- what is found

    def visit(self, node: ast.AST) -> None:
        if node not in self._left_out:
            super().visit(node)

    def _means(self, node: ast.expr, meaning: Symbol | Written) -> None:
        self._found.meanings.append((node, meaning, self._joined))
        if isinstance(meaning, Written):
            self._found.imports.update(meaning.imports)

    def _name(self, node: ast.Name | ast.Attribute) -> None:
        stored = isinstance(node.ctx, ast.Store) and isinstance(self._found.node, ast.Assign)
        meaning = self._meaning(node) if isinstance(node.ctx, ast.Load) or stored else None
        if meaning is _THE_LAB or meaning is _SKIP or (isinstance(meaning, Symbol) and not meaning.name):
            raise Unwritable(f"it uses {ast.unparse(node)} in a way that cannot be written without dsfix")
        if meaning is not None:
            self._means(node, meaning)
        elif isinstance(node, ast.Attribute):
            if self._meaning(node.value) is _THE_LAB:
                raise Unwritable(_MISSING.get(node.attr, f"it uses lab.{node.attr}, which those tests do not have"))
            self.visit(node.value)

    visit_Name = visit_Attribute = _name

    def visit_Call(self, node: ast.Call) -> None:
        self.visit(node.func)
        for number, argument in enumerate(node.args):
            if isinstance(argument, ast.Name) and self._meaning(argument) is _THE_LAB:
                self._found.lab.append((node, number, self._meaning(node.func), self._joined))
            else:
                self.visit(argument)
        for keyword in node.keywords:
            self.visit(keyword.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        call, text = node.exc, self._found.text
        if not self._skips(node):
            self.generic_visit(node)
        elif isinstance(call, ast.Call):
            self._found.imports.add("import pytest")
            self._found.changes += [(text.start(node), text.end(call.func), "pytest.skip")]
            self._found.changes += [(text.end(call), text.end(node), "")]
            for argument in call.args:
                self.visit(argument)

    def _skips(self, node: ast.stmt) -> bool:
        call = node.exc if isinstance(node, ast.Raise) else None
        return isinstance(call, ast.Call) and self._meaning(call.func) is _SKIP

    def visit_If(self, node: ast.If) -> None:
        if self._skips(node.body[0]) and not node.orelse and "ersion" in ast.unparse(node):  # too old a release
            self._leave_out(node)
        else:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if called is not None and (self._meaning(called) in _OLDER or self._requires_ranks(called)):
            self._leave_out(node)
        else:
            self.generic_visit(node)

    def _requires_ranks(self, called: ast.expr) -> bool:
        if not isinstance(called, ast.Attribute) or called.attr != "require_ranks":
            return False
        return self._meaning(called.value) is _THE_LAB

    def visit_IfExp(self, node: ast.IfExp) -> None:
        if ast.unparse(node) == _HERE:
            self._means(node, _HERE_MEANS)
        else:
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._joined, before = self._joined or node, self._joined
        self.generic_visit(node)
        self._joined = before


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _without_elements(text: Text, elements: Sequence[ast.expr], numbers: Sequence[int]) -> Iterator[Change]:
    last = max({*range(len(elements))} - {*numbers})
    for number in numbers:
        if number < last:
            yield text.start(elements[number]), text.start(elements[number + 1]), ""
        else:
            yield text.end(elements[number - 1]), text.end(elements[number]), ""


def _of_scope(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a function's body in the order of the source, without those of functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _of_scope(list(ast.iter_child_nodes(node)))


def binds(node: ast.AST) -> list[str]:
    """The names that a node itself binds."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.ExceptHandler):
        return [node.name] if node.name else []
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return []
