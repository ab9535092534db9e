"""What a piece of code of a patch, or of the lab, refers to.

Only what is dsfix's own (or the plug-in's whose patch it is) is followed; other packages are imported as they were.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..versions import module_file
from .meanings import (
    ACCELERATOR,
    DIST,
    FUNCTIONS,
    LAB,
    LAB_METHODS,
    LAB_MODULES,
    MISSING,
    OF_LAB,
    OLDER,
    SKIP,
    THE_LAB,
    TORCH,
    VOCABULARY,
    Meaning,
    Module,
    OfModule,
    Symbol,
    TheLab,
    Written,
    bound,
    module,
)
from .text import Inexportable, Text

_HERE = '"cuda" if torch.cuda.is_available() else "cpu"'


@dataclass
class ReadCode:
    """What a definition refers to, by place.

    meanings: with the f-string that they are in. lab: calls that pass the lab on, as which argument and to what; too.
    skips: raises of CannotTell. gone: statements that are not needed elsewhere; fewer: and parts of assignments of
    several values. local: names bound in its functions.
    """

    node: ast.AST
    text: Text
    meanings: list[tuple[ast.expr, Symbol | Written, ast.JoinedStr | None]] = field(default_factory=list)
    lab: list[tuple[ast.Call, int, Meaning, ast.JoinedStr | None]] = field(default_factory=list)
    skips: list[ast.Raise] = field(default_factory=list)
    gone: list[ast.stmt] = field(default_factory=list)
    fewer: dict[ast.Assign, list[int]] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)

    @property
    def symbols(self) -> Iterator[Symbol]:
        yield from (meaning for _, meaning, _ in self.meanings if isinstance(meaning, Symbol))
        yield from (meaning for _, _, meaning, _ in self.lab if isinstance(meaning, Symbol))


class Reader(ast.NodeVisitor):
    """Reads one definition. constants: meaning of names that a module defines and that are not to be followed."""

    def __init__(self, of: Module, constants: Mapping[str, object] | None = None, top: str = "dsfix") -> None:
        self.of, self.constants, self.tops = of, constants or {}, {"dsfix", top}
        self.scopes: list[dict[str, Meaning]] = []

    def read(self, node: ast.AST, lab: str = "lab") -> ReadCode:
        self.lab, self.found = lab, ReadCode(node, self.of.text)
        self.joined: ast.JoinedStr | None = None
        self.visit(node)
        return self.found

    # ---- meanings

    def meaning(self, node: ast.AST) -> Meaning:
        if isinstance(node, ast.Name):
            for scope in reversed(self.scopes):
                if node.id in scope:
                    return scope[node.id]
            return self._global(self.of, node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "PATCH" and "PATCH" in self.constants:
                return Written(repr(getattr(self.constants["PATCH"], node.attr)))
            return self._attribute(self.meaning(node.value), node.attr)
        return None

    def _global(self, of: Module, name: str) -> Meaning:
        if name in of.definitions:
            return Symbol(of.name, name)
        return self._imported(of, of.imports[name], name) if name in of.imports else None

    def _imported(self, of: Module, node: ast.stmt, name: str) -> Meaning:
        if isinstance(node, ast.Import):
            alias = next(each for each in node.names if name in (each.asname, each.name.partition(".")[0]))
            if self._own(alias.name):
                return OfModule(alias.name)
            return Written(name, (ast.unparse(ast.Import([alias])),), module=alias.name == "torch")
        assert isinstance(node, ast.ImportFrom)
        alias = next(each for each in node.names if name == (each.asname or each.name))
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), of.name.rpartition(".")[0])
        if base == "dsfix.patch":
            return VOCABULARY.get(alias.name, Symbol(base, alias.name))
        if not self._own(base):
            return Written(name, (ast.unparse(ast.ImportFrom(base, [alias], 0)),))
        return self._attribute(OfModule(base), alias.name)

    def _own(self, name: str) -> bool:
        return name.partition(".")[0] in self.tops

    def _attribute(self, of: Meaning, name: str) -> Meaning:
        if isinstance(of, OfModule):
            if module_file(f"{of.name}.{name}"):
                return OfModule(f"{of.name}.{name}")
            return self._global(module(of.name), name)
        if of is THE_LAB:
            if name in LAB_MODULES:
                return OfModule(LAB_MODULES[name])
            if name in LAB_METHODS:
                return Symbol(LAB, f"Lab.{name}")
            return OF_LAB.get(name)
        return DIST if of == TORCH and name == "distributed" else None

    # ---- scopes

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        for outer in (*getattr(node, "decorator_list", ()), *arguments.defaults, *arguments.kw_defaults):
            if outer is not None:
                self.visit(outer)
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        scope: dict[str, Meaning] = {each.arg: None for each in named if each is not None}
        if self.lab in scope:
            scope[self.lab] = THE_LAB
        self.scopes.append(scope)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._bind(body, scope)
        self.found.local |= scope.keys() - {name for name, meaning in scope.items() if meaning is not None}
        for each in body:
            self.visit(each)
        self.scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function

    def _bind(self, body: list[ast.stmt] | list[ast.expr], scope: dict[str, Meaning]) -> None:
        """The names that the body binds; those that stand for something of dsfix, or torch, with their meaning."""
        inside = list(_of_scope(body))
        stores = [name for node in inside for name in _binds(node)]
        scope.update(dict.fromkeys(stores))
        for node in inside:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                meanings = {name: self._imported(self.of, node, name) for name in bound(node)}
                if not any(isinstance(meaning, Written) and meaning.imports for meaning in meanings.values()):
                    scope.update(meanings)
                    self.found.gone.append(node)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                pairs = _pairs(node.targets[0], node.value)
                aliases = {
                    name: meaning
                    for name, value in pairs
                    if stores.count(name) == 1 and _has_aliases(meaning := self.meaning(value))
                }
                scope.update(aliases)
                if aliases and len(aliases) == len(pairs):
                    self.found.gone.append(node)
                elif aliases:
                    self.found.fewer[node] = [number for number, (name, _) in enumerate(pairs) if name in aliases]

    def _comprehension(self, node: ast.AST) -> None:
        self.scopes.append({name: None for each in ast.walk(node) for name in _binds(each)})
        self.found.local |= self.scopes[-1].keys()
        self.generic_visit(node)
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    # ---- what is found

    def _name(self, node: ast.Name | ast.Attribute) -> None:
        stored = isinstance(node.ctx, ast.Store) and isinstance(self.found.node, ast.Assign)
        meaning = self.meaning(node) if isinstance(node.ctx, ast.Load) or stored else None
        if isinstance(meaning, (Symbol, Written)):
            self.found.meanings.append((node, meaning, self.joined))
        elif isinstance(meaning, (OfModule, TheLab)):
            raise Inexportable(f"it uses {ast.unparse(node)} in a way that cannot be written without dsfix")
        elif isinstance(node, ast.Attribute):
            if self.meaning(node.value) is THE_LAB:
                raise Inexportable(MISSING.get(node.attr, f"it uses lab.{node.attr}, which those tests do not have"))
            self.visit(node.value)

    visit_Name = visit_Attribute = _name

    def visit_Call(self, node: ast.Call) -> None:
        self.visit(node.func)
        for number, argument in enumerate(node.args):
            if isinstance(argument, ast.Name) and self.meaning(argument) is THE_LAB:
                self.found.lab.append((node, number, self.meaning(node.func), self.joined))
            else:
                self.visit(argument)
        for keyword in node.keywords:
            self.visit(keyword.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        call = node.exc
        if isinstance(call, ast.Call) and self.meaning(call.func) is SKIP:
            self.found.skips.append(node)
            for argument in call.args:
                self.visit(argument)
        else:
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        only = node.body[0]
        tells = isinstance(only, ast.Raise) and isinstance(only.exc, ast.Call) and self.meaning(only.exc.func) is SKIP
        if tells and not node.orelse and "ersion" in ast.unparse(node):  # too old a release
            self.found.gone.append(node)
        else:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            called, meaning = node.value.func, self.meaning(node.value.func)
            on_lab = isinstance(called, ast.Attribute) and self.meaning(called.value) is THE_LAB
            older = meaning in [Symbol("dsfix.patches.checkpoint._checkpoints", name) for name in OLDER]
            if older or (on_lab and isinstance(called, ast.Attribute) and called.attr == "require_ranks"):
                self.found.gone.append(node)
                return
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        if ast.unparse(node) == ast.unparse(ast.parse(_HERE)):
            here = Written("get_accelerator().device_name()", (ACCELERATOR,))
            self.found.meanings.append((node, here, self.joined))
        else:
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.joined, before = self.joined or node, self.joined
        self.generic_visit(node)
        self.joined = before

    def visit_Assign(self, node: ast.Assign) -> None:
        if node in self.found.fewer and isinstance(node.value, ast.Tuple):
            for number, value in enumerate(node.value.elts):
                if number not in self.found.fewer[node]:
                    self.visit(value)
        elif node not in self.found.gone:
            self.generic_visit(node)


def _has_aliases(meaning: Meaning) -> bool:
    return isinstance(meaning, (OfModule, Symbol)) or (isinstance(meaning, Written) and meaning.module)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    """The names and what is assigned to each; empty where that is not so plain."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = [*zip(target.elts, value.elts)]
    else:
        pairs = [(target, value)]
    return (
        [(name.id, each) for name, each in pairs if isinstance(name, ast.Name)]
        if all(isinstance(name, ast.Name) for name, _ in pairs)
        else []
    )


def _of_scope(body: list[ast.stmt] | list[ast.expr]) -> Iterator[ast.AST]:
    """The nodes of a function's body in the order of the source, without those of functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _of_scope(list(ast.iter_child_nodes(node)))  # type: ignore[arg-type]


def _binds(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.ExceptHandler):
        return [node.name] if node.name else []
    return bound(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else []
