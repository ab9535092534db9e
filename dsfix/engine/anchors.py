"""Anchors: finds them in a function's syntax tree and inserts an Edit's code there."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Sequence
from typing import Any, Union, cast

from ..outcome import ChangeRefused, Outcome
from ..patch import Edit
from . import source
from .source import BLOCK_FIELDS, NESTING_FIELDS, SCOPES, FunctionNode, split_target

Node = Union[ast.stmt, ast.expr]
Place = Sequence[Node]  # consecutive statements of one block, or one expression

_IGNORED = {"type_comment", "kind"}


@functools.lru_cache(maxsize=256)
def _parse(code: str) -> tuple[ast.stmt, ...]:
    return tuple(ast.parse(textwrap.dedent(code)).body)


def as_expression(code: str) -> ast.expr | None:
    """`code` as one expression, or None."""
    body = _parse(code)
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None


def matches(pattern: Any, node: Any) -> bool:
    """Whether trees are equal apart from positions; in `pattern`, a body that is only ``...`` equals any body."""
    if isinstance(pattern, list):
        if not isinstance(node, list):
            return False
        if len(pattern) == 1 and _is_ellipsis(pattern[0]) and node and isinstance(node[0], ast.stmt):
            return True
        return len(pattern) == len(node) and all(map(matches, pattern, node))
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.AST):
        return all(
            matches(getattr(pattern, name, None), getattr(node, name, None))
            for name in pattern._fields
            if name not in _IGNORED
        )
    return bool(pattern == node)


def _is_ellipsis(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


@functools.lru_cache(maxsize=32)
def _blocks(tree: ast.AST) -> list[list[ast.stmt]]:
    """The blocks of a tree; expressions, which contain none, are not searched."""
    blocks: list[list[ast.stmt]] = []
    waiting: list[Any] = [tree]
    for node in waiting:
        for name in NESTING_FIELDS:
            inner = getattr(node, name, None)
            if inner:
                waiting += inner
                blocks += [inner] if name in BLOCK_FIELDS else []
    return blocks


@functools.lru_cache(maxsize=32)
def _by_type(tree: ast.AST) -> dict[type, list[ast.expr]]:
    expressions: dict[type, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            expressions.setdefault(type(node), []).append(node)
    return expressions


def forget(texts: bool = False) -> None:
    """Like `source.forget`; also forgets what was found in the trees."""
    source.forget(texts)
    _blocks.cache_clear()
    _by_type.cache_clear()


def statements(tree: ast.AST, code: str) -> list[Place]:
    """Every place where the statements of `code` occur consecutively."""
    pattern = _parse(code)
    return [
        list(block[start : start + len(pattern)])
        for block in _blocks(tree)
        for start in range(len(block) - len(pattern) + 1)
        if type(block[start]) is type(pattern[0]) and all(map(matches, pattern, block[start:]))
    ]


def _expressions(tree: ast.AST, pattern: ast.expr) -> list[Place]:
    return [[node] for node in _by_type(tree).get(type(pattern), ()) if matches(pattern, node)]


def occurrences(tree: ast.AST, code: str) -> list[Place]:
    """Every occurrence in `tree` of `code`: statements or one expression."""
    expression = as_expression(code)
    return statements(tree, code) if expression is None else _expressions(tree, expression)


def inner_function(function: FunctionNode, qualname: str) -> FunctionNode:
    """The function that `qualname` names: usually its outermost function `function` itself, else one nested in it.
    Raises ChangeRefused: none exists, or several."""
    scope: ast.AST = function
    for name in split_target(qualname)[1]:
        nested = [n for n in ast.walk(scope) if isinstance(n, SCOPES) and n.name == name and n is not scope]
        if len(nested) != 1:
            raise ChangeRefused(Outcome.DRIFTED, f"{function.name} has {len(nested)} definitions of {name}, not one")
        scope = nested[0]
    if isinstance(scope, ast.ClassDef):
        raise ChangeRefused(Outcome.DRIFTED, f"{scope.name} in {function.name} is a class")
    return cast(FunctionNode, scope)


def locate(edit: Edit, function: FunctionNode) -> list[Place]:
    """Where the edit goes.

    Raises ChangeRefused: already-fixed if the edit's own result is found, drifted if the anchor does not occur exactly
    as often as declared.
    """
    if edit.replace is None:
        every, made = statements(function, edit.anchor), _already_applied(edit, function)
        done = [place for place in every if id(place[0]) in made]
        places = [place for place in every if id(place[0]) not in made]
    else:
        old, new = as_expression(edit.anchor), as_expression(edit.code_with_imports)
        if old is not None and new is not None:
            before, after = _expressions(function, old), _expressions(function, new)
        else:
            before, after = statements(function, edit.anchor), statements(function, edit.code_with_imports)
        places = _not_inside(before, after)  # the fix may contain the anchor: f(x) -> g(f(x))
        done = _not_inside(after, before)  # or the anchor may contain the fix: if a: f(x) -> f(x)
    if len(done) == edit.count and not places:
        raise ChangeRefused(Outcome.ALREADY_FIXED, f"`{first_line(edit.code)}` is in the source already")
    if done or len(places) != edit.count:
        also = f"; its patched form occurs {_times(len(done))}" if done else ""
        raise ChangeRefused(
            Outcome.DRIFTED,
            f"`{first_line(edit.anchor)}` occurs {_times(len(places))} in {edit.qualname}, expected {edit.count}{also}",
        )
    return places


def _times(count: int) -> str:
    return f"{count} time{'s' * (count != 1)}"


def _already_applied(edit: Edit, function: FunctionNode) -> set[int]:
    """The first statements (by id) of the anchors next to which the edit's code already is."""
    anchor, code = map(textwrap.dedent, (edit.anchor, edit.code_with_imports))
    if edit.after is not None:
        return {id(place[0]) for place in statements(function, f"{anchor}\n{code}")}
    return {id(place[len(_parse(code))]) for place in statements(function, f"{code}\n{anchor}")}


def _not_inside(places: Sequence[Place], others: Sequence[Place]) -> list[Place]:
    """Those of `places` that are not part of any of `others`."""
    inside = {id(node) for other in others for top in other for node in ast.walk(top)}
    return [place for place in places if id(place[0]) not in inside]


def first_line(code: str) -> str:
    lines = textwrap.dedent(code).strip().splitlines()
    return lines[0] + (" …" if len(lines) > 1 else "")


def apply(edits: Sequence[tuple[str, Edit]], function: FunctionNode) -> None:
    """Makes all edits (patch id, edit) of one function, each located in the function as it was.

    Raises ChangeRefused: see `locate`; conflict if two edits change the same code.
    """
    located = [
        (patch_id, edit, place)
        for patch_id, edit in sorted(edits, key=lambda pair: pair[0])
        for place in locate(edit, inner_function(function, edit.qualname))
    ]
    _refuse_clashes(located)
    before: dict[int, list[ast.stmt]] = {}
    after: dict[int, list[ast.stmt]] = {}
    gone = set[int]()
    swaps: dict[int, ast.expr] = {}
    for patch_id, edit, place in located:
        first, last = place[0], place[-1]
        if edit.after is not None:
            after.setdefault(id(last), []).extend(_at_anchor_line(patch_id, edit, last))
        elif isinstance(first, ast.expr):
            *telling, new = _at_anchor_line(patch_id, edit, first)
            swaps[id(first)] = cast(ast.Expr, new).value
            around = [s for block in _blocks(function) for s in block if any(n is first for n in ast.walk(s))][-1]
            before.setdefault(id(around), []).extend(telling)
        else:
            before.setdefault(id(first), []).extend(_at_anchor_line(patch_id, edit, first))
            if edit.replace is not None:
                gone.update(map(id, place))
    for block in _blocks(function):
        parts = [(before.get(id(s), ()), () if id(s) in gone else (s,), after.get(id(s), ())) for s in block]
        block[:] = [statement for three in parts for part in three for statement in part]
    if swaps:
        _ReplaceExpressions(swaps).visit(function)


def _refuse_clashes(located: Sequence[tuple[str, Edit, Place]]) -> None:
    replaced: dict[int, set[str]] = {}
    for patch_id, edit, place in located:
        if edit.replace is not None:
            for node in (inner for top in place for inner in ast.walk(top)):
                replaced.setdefault(id(node), set()).add(patch_id)
    for patch_id, _, place in located:
        others = set().union(*(replaced.get(id(node), ()) for node in place)) - {patch_id}
        if others:
            raise ChangeRefused(Outcome.CONFLICT, f"{patch_id} and {', '.join(others)} change the same statement")


class _ReplaceExpressions(ast.NodeTransformer):
    def __init__(self, swaps: dict[int, ast.expr]) -> None:
        self.swaps = swaps

    def visit(self, node: ast.AST) -> Any:
        return self.swaps.get(id(node)) or self.generic_visit(node)


def _at_anchor_line(patch_id: str, edit: Edit, anchor: ast.AST) -> tuple[ast.stmt, ...]:
    """The edit's statements, with the anchor's line number everywhere, for tracebacks."""
    statements = _parse.__wrapped__(edit.effect_code(patch_id) + edit.code_with_imports)  # its own copy
    for part in (part for statement in statements for part in ast.walk(statement)):
        if "lineno" in part._attributes:
            ast.copy_location(part, anchor)
    return statements
