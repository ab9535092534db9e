"""Code objects: finding the function under its decorators, compiling it from an edited syntax tree."""

from __future__ import annotations
import __future__

import ast
import functools
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .outcome import Outcome, Refused
from .source import ACCESSORS, FunctionNode

_FUTURE = __future__.annotations.compiler_flag  # the only future statement that Python 3.9 and later obey
_BEHIND = ("__func__", "fget", "fset", "fdel", "func", "__wrapped__", "_torchdynamo_orig_callable")
_DEPTH = 8


def attribute(module: ModuleType, qualname: str) -> tuple[Any, str, Any]:
    """(holder, name, raw value) of a dotted name in a module, past no descriptor.

    Raises:
        Refused: drifted where the name is not there.
    """
    holder: Any = module
    *path, name = qualname.split(".")
    for part in path:
        holder = _own(holder, part, qualname)
    if isinstance(holder, type) and name.startswith("__") and not name.endswith("__"):
        name = f"_{holder.__name__.lstrip('_')}{name}"  # private: stored under its mangled name
    return holder, name, _own(holder, name, qualname)


def _own(holder: Any, name: str, qualname: str) -> Any:
    try:
        return vars(holder)[name]
    except (KeyError, TypeError):
        if isinstance(holder, property) and name in ACCESSORS:
            return getattr(holder, name)
        raise Refused(
            Outcome.DRIFTED, f"{qualname} is not there ({getattr(holder, '__name__', holder)} has no {name})"
        ) from None


def functions_beneath(value: Any) -> Iterator[FunctionType]:
    """Every Python function reachable from `value` through descriptors, `__wrapped__` and closure cells."""
    queue, seen = deque([(value, 0)]), set()
    while queue:
        item, depth = queue.popleft()
        if id(item) in seen or depth > _DEPTH:
            continue
        seen.add(id(item))
        inner = [_static(item, name) for name in _BEHIND]
        if isinstance(item, FunctionType):
            yield item
            for cell in item.__closure__ or ():
                try:
                    inner.append(cell.cell_contents)
                except ValueError:  # an empty cell
                    continue
        elif isinstance(item, functools.partial):
            inner.append(item.func)
        elif not isinstance(item, type) and isinstance(getattr(item, "__dict__", None), dict):
            inner += vars(item).values()  # a decorator written as a class
        queue.extend((each, depth + 1) for each in inner if _may_lead_on(each))


def _static(item: Any, name: str) -> Any:
    # a decorator object may compute any attribute it is asked for: only what is stored counts
    if isinstance(item, (staticmethod, classmethod, property, functools.partial, functools.cached_property)):
        return getattr(item, name, None)
    if name == "__wrapped__":
        return getattr(item, name, None) if callable(item) and not isinstance(item, type) else None
    return vars(item).get(name) if isinstance(item, FunctionType) else None


def _may_lead_on(item: Any) -> bool:
    return not isinstance(item, (type, ModuleType)) and (
        callable(item) or isinstance(item, (staticmethod, classmethod, property, functools.cached_property))
    )


def find_function(module: ModuleType, qualname: str, accessor: str) -> FunctionType:
    """The function of that name that was defined in the module's own file, under whatever decorators.

    Raises:
        Refused: drifted where the name is not there, conflict where it leads to another file's function only.
    """
    *_, raw = attribute(module, qualname)
    if isinstance(raw, property):
        raw = getattr(raw, accessor or "fget")
    name = qualname.rpartition(".")[2]
    path = getattr(module, "__file__", None) or ""
    strangers: list[FunctionType] = []
    for function in functions_beneath(raw):
        code = function.__code__
        if code.co_name == name and _same_file(code.co_filename, path) and _has_qualname(code, qualname):
            return function
        strangers.append(function)
    if not strangers:
        raise Refused(Outcome.DRIFTED, f"{qualname} is not a Python function but {type(raw).__name__}")
    # the package's own decorators are not to blame where there is somebody else
    own = tuple(getattr(sys.modules.get(module.__name__.partition(".")[0]), "__path__", ()))
    stranger = min(strangers, key=lambda each: each.__code__.co_filename.startswith(own))
    raise Refused(
        Outcome.CONFLICT,
        f"{qualname} has been replaced by {stranger.__module__}.{stranger.__qualname__} "
        f"({stranger.__code__.co_filename}:{stranger.__code__.co_firstlineno})",
    )


def _has_qualname(code: CodeType, qualname: str) -> bool:
    return getattr(code, "co_qualname", qualname) == qualname  # Python 3.11


def _same_file(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def compile_function(node: FunctionNode, qualname: str, like: CodeType, imports: Iterable[str]) -> CodeType:
    """The code object of `node`, compiled as if where `like` was: same classes, future flags and file.

    `imports` are the names that the file imports at its top level: see dsfix.engine.imports.
    """
    body: ast.stmt = node
    for name in reversed(qualname.split(".")[:-1]):  # for name mangling, `__class__` and the qualified name
        body = ast.ClassDef(name=name, bases=[], keywords=[], body=[body], decorator_list=[], **_TYPE_PARAMS, **_AT)
    tree = ast.Module(body=[body], type_ignores=[])
    if imports:
        tree.body.insert(0, ast.Import(names=[ast.alias(name, **_AT) for name in imports], **_AT))
    compiled = compile(tree, like.co_filename, "exec", flags=like.co_flags & _FUTURE, dont_inherit=True)
    for code in _nested(compiled):
        if code.co_name == like.co_name and code.co_firstlineno == like.co_firstlineno:
            return code
    raise Refused(Outcome.DRIFTED, f"{qualname} is not at {like.co_filename}:{like.co_firstlineno}")


_AT: dict[str, Any] = {"lineno": 1, "col_offset": 0}
_TYPE_PARAMS: dict[str, Any] = {"type_params": []} if "type_params" in ast.ClassDef._fields else {}  # Python 3.12


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def nested_code(code: CodeType, path: list[str]) -> CodeType:
    """The code object nested in `code` under the names of `path`."""
    for name in path:
        code = next(inner for inner in _nested(code) if inner.co_name == name)
    return code


def equal(one: CodeType, other: CodeType) -> bool:
    """Equality of what is executed; columns, which `-X no_debug_ranges` leaves out, do not count."""
    return one == other or _without_positions(one) == _without_positions(other)


def _without_positions(code: CodeType) -> CodeType:
    constants = tuple(_without_positions(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    if hasattr(code, "co_positions"):  # Python 3.11
        code = code.replace(co_linetable=b"")
    return code.replace(co_consts=constants)


_KIND = 0x20 | 0x80 | 0x100 | 0x200  # generator, coroutine, iterable coroutine, asynchronous generator


def check_swappable(old: CodeType, new: CodeType, qualname: str) -> None:
    """Raises Refused(failed) where `new` cannot stand in for `old`: other cells, another signature or kind."""
    for what in ("co_freevars", "co_argcount", "co_kwonlyargcount", "co_posonlyargcount"):
        if getattr(old, what) != getattr(new, what):
            raise Refused(Outcome.FAILED, f"the edit changes {what} of {qualname}")
    if (old.co_flags ^ new.co_flags) & _KIND:
        raise Refused(Outcome.FAILED, f"the edit makes {qualname} another kind of function")
