"""Anchors: finding them in a function's syntax tree, and putting an Edit's code there."""

from __future__ import annotations

import ast
import copy
import functools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Union, cast

from ..patch import Edit
from .outcome import Outcome, Refused
from .source import Block, FunctionNode, split_target

_IGNORED = {"type_comment", "kind"}


@dataclass(frozen=True)
class Run:
    """Consecutive statements `start` … `start + count - 1` of one statement list."""

    statements: list[ast.stmt]
    start: int
    count: int

    @property
    def nodes(self) -> list[ast.stmt]:
        return self.statements[self.start : self.start + self.count]


Place = Union[Run, ast.expr]


@functools.lru_cache(maxsize=256)
def _parse(code: str) -> tuple[ast.stmt, ...]:
    return tuple(ast.parse(textwrap.dedent(code)).body)


def as_expression(code: str) -> ast.expr | None:
    """The one expression that `code` is, or None."""
    body = _parse(code)
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None


def same(pattern: Any, node: Any) -> bool:
    """Equality of syntax trees, positions aside; in `pattern` a body that is only ``...`` equals any body."""
    if isinstance(pattern, list):
        if not isinstance(node, list):
            return False
        if len(pattern) == 1 and _is_ellipsis(pattern[0]) and node and isinstance(node[0], ast.stmt):
            return True
        return len(pattern) == len(node) and all(map(same, pattern, node))
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.AST):
        return all(
            same(getattr(pattern, name, None), getattr(node, name, None))
            for name in pattern._fields
            if name not in _IGNORED
        )
    return bool(pattern == node)


def _is_ellipsis(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


@functools.lru_cache(maxsize=32)
def _statement_lists(tree: ast.AST) -> list[list[ast.stmt]]:
    """The statement lists of a tree that is not changed any more; expressions, which hold none, are not looked into."""
    lists: list[list[ast.stmt]] = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        for name in _HOLDS_STATEMENTS.get(type(node), ()):
            inner = getattr(node, name)
            if inner:
                waiting += inner
                if name in _STATEMENTS:
                    lists.append(inner)
    return lists


_STATEMENTS = ("body", "orelse", "finalbody")
_HOLDS_STATEMENTS = {
    kind: names
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST) and not issubclass(kind, ast.expr)
    for names in [[name for name in kind._fields if name in (*_STATEMENTS, "handlers", "cases")]]
    if names
}


@functools.lru_cache(maxsize=32)
def _expressions(tree: ast.AST) -> dict[type, list[ast.expr]]:
    """The expressions of a tree that is not changed any more, by type."""
    found: dict[type, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            found.setdefault(type(node), []).append(node)
    return found


def forget() -> None:
    """Drop the trees that have been read: some 100 kB per function, which a job need not keep."""
    Block.tree.cache_clear()
    _statement_lists.cache_clear()
    _expressions.cache_clear()


def runs(tree: ast.AST, code: str) -> list[Run]:
    """Every place where the statements of `code` stand one after another."""
    pattern = _parse(code)
    found = []
    for statements in _statement_lists(tree):
        for start in range(len(statements) - len(pattern) + 1):
            if all(map(same, pattern, statements[start:])):
                found.append(Run(statements, start, len(pattern)))
    return found


def expressions(tree: ast.AST, pattern: ast.expr) -> list[ast.expr]:
    """Every expression in `tree` equal to `pattern`."""
    return [node for node in _expressions(tree).get(type(pattern), ()) if same(pattern, node)]


def may_occur(text: str, code: str) -> bool:
    """Whether every name in `code` is in the text: where not, `code` does not stand there."""
    return all(name in text for name in _names(code))


@functools.lru_cache(maxsize=256)
def _names(code: str) -> frozenset[str]:
    nodes = [node for statement in _parse(code) for node in ast.walk(statement)]
    names = {getattr(node, name, None) for node in nodes for name in ("id", "attr", "arg", "name")}
    return frozenset(name for name in names if isinstance(name, str))


def occurs(tree: ast.AST, code: str) -> bool:
    """Whether the statements, or the one expression, of `code` stand anywhere in `tree`."""
    expression = as_expression(code)
    return bool(expressions(tree, expression) if expression is not None else runs(tree, code))


def inner_function(function: FunctionNode, path: Sequence[str]) -> FunctionNode:
    """The function nested in `function` under the names of `path`.

    Raises:
        Refused: there is none, or several.
    """
    scope: ast.AST = function
    for name in path:
        nested = [n for n in ast.walk(scope) if isinstance(n, _SCOPES) and n.name == name and n is not scope]
        if len(nested) != 1:
            raise Refused(Outcome.DRIFTED, f"{function.name} holds {len(nested)} definitions of {name}, not one")
        scope = nested[0]
    if isinstance(scope, ast.ClassDef):
        raise Refused(Outcome.DRIFTED, f"{scope.name} in {function.name} is a class")
    return cast(FunctionNode, scope)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def locate(edit: Edit, function: FunctionNode) -> list[Place]:
    """Where the edit goes.

    Raises:
        Refused: already-fixed where the edit's own result stands there, drifted where the anchor does not occur
            exactly as often as declared.
    """
    if edit.replace is None:
        every = runs(function, edit.anchor)
        done: Sequence[Place] = [run for run in every if _has_neighbour(edit, run)]
        places: list[Place] = [run for run in every if run not in done]
    else:
        old, new = as_expression(edit.anchor), as_expression(edit.written)
        if old is not None and new is not None:
            before: Sequence[Place] = expressions(function, old)
            after: Sequence[Place] = expressions(function, new)
        else:
            before, after = runs(function, edit.anchor), runs(function, edit.written)
        places = _outside(before, after)  # the fix may hold the anchor: f(x) -> g(f(x))
        done = _outside(after, before)  # or the anchor the fix: if a: f(x) -> f(x)
    if len(done) == edit.count and not places:
        raise Refused(Outcome.ALREADY_FIXED, f"`{first_line(edit.written)}` is in the source already")
    if done or len(places) != edit.count:
        also = f", and {len(done)} times as the patch would make it" if done else ""
        raise Refused(
            Outcome.DRIFTED,
            f"`{first_line(edit.anchor)}` occurs {len(places)} times in {edit.qualname}, not {edit.count}{also}",
        )
    return places


def _outside(places: Sequence[Place], others: Sequence[Place]) -> list[Place]:
    """Those of `places` that are no part of any of `others`."""
    inside = {id(node) for other in others for top in _nodes(other) for node in ast.walk(top)}
    return [place for place in places if id(_nodes(place)[0]) not in inside]


def _nodes(place: Place) -> Sequence[ast.AST]:
    return place.nodes if isinstance(place, Run) else [place]


def _has_neighbour(edit: Edit, run: Run) -> bool:
    pattern = _parse(edit.written)
    if edit.after is not None:
        start = run.start + run.count
        beside = run.statements[start : start + len(pattern)]
    else:
        beside = run.statements[max(0, run.start - len(pattern)) : run.start]
    return len(beside) == len(pattern) and all(map(same, pattern, beside))


def first_line(code: str) -> str:
    """The first line of `code`, for messages."""
    lines = textwrap.dedent(code).strip().splitlines()
    return lines[0] + (" …" if len(lines) > 1 else "")


@dataclass
class _Plan:
    """What is to be done to one statement list, collected before anything is touched."""

    statements: list[ast.stmt]
    before: dict[int, list[ast.stmt]] = field(default_factory=dict)
    after: dict[int, list[ast.stmt]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)


def apply(edits: Sequence[tuple[str, Edit]], function: FunctionNode) -> None:
    """Makes all edits (patch id, edit) of one function, each located in the function as it was.

    Raises:
        Refused: see `locate`; conflict where two edits replace the same code.
    """
    plans: dict[int, _Plan] = {}
    swaps: dict[int, ast.expr] = {}
    replaced: dict[int, set[str]] = {}
    anchors: list[tuple[str, Sequence[ast.AST]]] = []
    for patch_id, edit in sorted(edits, key=lambda pair: pair[0]):
        scope = inner_function(function, edit_path(edit))
        for place in locate(edit, scope):
            nodes = _nodes(place)
            anchors.append((patch_id, nodes))
            if edit.replace is not None:
                for inner in (inner for node in nodes for inner in ast.walk(node)):
                    replaced.setdefault(id(inner), set()).add(patch_id)
            if isinstance(place, Run):
                _plan(plans.setdefault(id(place.statements), _Plan(place.statements)), edit, place)
            else:
                swaps[id(place)] = _placed(copy.deepcopy(as_expression(edit.written)), place)
    for patch_id, nodes in anchors:
        clash = set().union(*(replaced.get(id(node), ()) for node in nodes)) - {patch_id}
        if clash:
            raise Refused(Outcome.CONFLICT, f"{patch_id} and {', '.join(clash)} change the same statement")
    for plan in plans.values():
        _carry_out(plan)
    if swaps:
        _Swap(swaps).visit(function)


def edit_path(edit: Edit) -> list[str]:
    """The names of the nested functions in the edit's target, outermost function left out."""
    return split_target(edit.qualname)[1]


def _plan(plan: _Plan, edit: Edit, run: Run) -> None:
    first, last = run.start, run.start + run.count - 1
    if edit.after is not None:
        plan.after.setdefault(last, []).extend(_placed_all(edit.written, run.statements[last]))
        return
    plan.before.setdefault(first, []).extend(_placed_all(edit.written, run.statements[first]))
    if edit.replace is not None:
        plan.gone.update(range(first, last + 1))


def _carry_out(plan: _Plan) -> None:
    result: list[ast.stmt] = []
    for index, statement in enumerate(plan.statements):
        result += plan.before.get(index, [])
        if index not in plan.gone:
            result.append(statement)
        result += plan.after.get(index, [])
    plan.statements[:] = result


class _Swap(ast.NodeTransformer):
    def __init__(self, swaps: dict[int, ast.expr]) -> None:
        self.swaps = swaps

    def visit(self, node: ast.AST) -> Any:
        return self.swaps.get(id(node)) or self.generic_visit(node)


def _placed_all(code: str, anchor: ast.stmt) -> list[ast.stmt]:
    return [_placed(statement, anchor) for statement in ast.parse(textwrap.dedent(code)).body]


def _placed(node: Any, anchor: ast.AST) -> Any:
    """`node`, every part of it put where the anchor stands, for tracebacks."""
    for part in ast.walk(node):
        if "lineno" in part._attributes:
            ast.copy_location(part, anchor)
    return node
