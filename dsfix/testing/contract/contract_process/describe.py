"""Describes values as text, equal in two processes if and only if the values behave the same; without dsfix."""

from __future__ import annotations

import bisect
import dis
import functools
import gc
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

ABSENT = "absent"
_ACCESSORS = ("fget", "fset", "fdel")
_DEPTH = 6
_FUNCTIONS = FunctionType, staticmethod, classmethod


def of_code(code: CodeType) -> str:
    """The instructions without positions: NOPs, which only mark lines, are omitted, and jumps count instructions."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "NOP"]
    offsets = [instruction.offset for instruction in instructions]
    jumps = {*dis.hasjrel, *dis.hasjabs}
    lines = [
        f"code {code.co_qualname} {code.co_flags}",
        f"arguments {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}",
        f"variables {code.co_varnames} cells {code.co_cellvars} free {code.co_freevars}",
    ]
    for instruction in instructions:
        if isinstance(instruction.argval, CodeType):
            lines += [instruction.opname, textwrap.indent(of_code(instruction.argval), "  ")]
        elif instruction.opcode in jumps:
            lines.append(f"{instruction.opname} to {bisect.bisect_left(offsets, instruction.argval)}")
        else:
            lines.append(f"{instruction.opname} {_argument(instruction)}".rstrip())
    return "\n".join(lines)


def _argument(instruction: dis.Instruction) -> str:
    if isinstance(instruction.argval, frozenset):  # its order differs between processes
        return repr(sorted(map(repr, instruction.argval)))
    return instruction.argrepr or ("" if instruction.arg is None else str(instruction.arg))


def lines_of(code: CodeType) -> list[int]:
    lines = {line for *_, line in code.co_lines() if line is not None}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines.update(lines_of(constant))
    return sorted(lines)


def codes_named(code: CodeType, qualname: str) -> Iterator[CodeType]:
    """Every code object of that qualified name in `code`, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == qualname:
                yield constant
            yield from codes_named(constant, qualname)


def of_value(value: Any, depth: int = _DEPTH) -> str:
    """A function by its code and closure, a class by its functions, anything else by its type and plain value."""
    lines: list[str] = []
    inner: dict[str, Any] = {}
    kind = type(value)  # not `__class__`, which a wrapper forwards
    if issubclass(kind, (staticmethod, classmethod)):
        lines, inner = [kind.__name__], {"of": value.__func__}
    elif issubclass(kind, property):
        lines, inner = ["property"], {name: getattr(value, name) for name in _ACCESSORS}
    elif issubclass(kind, type):
        lines = [f"class {value.__module__}.{value.__qualname__}"]
        inner = {k: v for k, v in sorted(vars(value).items()) if isinstance(v, _FUNCTIONS)} if depth == _DEPTH else {}
    elif kind is FunctionType:
        lines = [f"function of {value.__module__}", of_code(value.__code__)]
        inner = _held_by(value)
    elif callable(value) and hasattr(value, "__wrapped__"):
        lines = [kind.__name__]
        inner = {"wrapped": value.__wrapped__, "by": getattr(value, "_self_wrapper", None)}
    elif isinstance(value, functools.partial):
        lines, inner = ["partial"], {"of": value.func}
    elif isinstance(value, dict) and depth == _DEPTH:  # a registry, whose objects may have their own functions
        lines, inner = (
            ["dict"],
            {
                f"{key}.{name}": own
                for key, each in value.items()
                for name, own in getattr(each, "__dict__", {}).items()
                if type(own) is FunctionType
            },
        )
    else:
        plain = isinstance(value, (type(None), bool, int, float, str, bytes, tuple))
        return f"{type(value).__qualname__} {repr(value)[:200] if plain else ''}".rstrip()
    for name, each in inner.items():
        lines += [name, textwrap.indent(of_value(each, depth - 1), "  ") if depth else type(each).__name__]
    return "\n".join(lines)


def _held_by(function: FunctionType) -> dict[str, Any]:
    functions = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            functions[name] = cell.cell_contents
        except ValueError:
            functions[name] = "an empty cell"
    wrapped = vars(function).get("__wrapped__")
    return functions if wrapped is None else {**functions, "__wrapped__": wrapped}


def holder_of(module: ModuleType, qualname: str) -> tuple[Any, str]:
    """(module or class, name) of a target's outermost function or attribute."""
    *path, name = qualname.partition(".<locals>.")[0].split(".")
    holder: Any = module
    for part in path:
        holder = vars(holder)[part]
    if isinstance(holder, type) and name.startswith("__") and not name.endswith("__"):
        name = f"_{holder.__name__.lstrip('_')}{name}"
    return holder, name


def function_of(module: ModuleType, qualname: str) -> FunctionType:
    """The module's own function of that name, below any decorators. Raises LookupError if it does not exist."""
    holder, name = holder_of(module, qualname)
    value = vars(holder)[name]
    queue, seen = [value], set()
    outer_name = qualname.partition(".<locals>.")[0]
    while queue:
        item = queue.pop(0)
        if id(item) in seen or isinstance(item, (ModuleType, type)):
            continue
        seen.add(id(item))
        if type(item) is FunctionType:
            if item.__code__.co_filename == module.__file__ and item.__code__.co_qualname == outer_name:
                return item
            queue += [get_referent for get_referent in gc.get_referents(item) if get_referent is not item.__globals__]
        elif len(seen) < 1000:
            queue += gc.get_referents(item)
    raise LookupError(f"no function {outer_name} of the module's own file is below the object")


def change(verb: str, module_name: str, qualname: str) -> dict[str, Any]:
    """What is at a change's target: its description, the lines of the code, the modules that share it."""
    module = sys.modules.get(module_name)
    if module is None:
        return {"text": "its module is not imported", "lines": [], "shared": []}
    try:
        holder, name = holder_of(module, qualname)
        value = vars(holder)[name]
        if verb == "Edit":
            function = function_of(module, qualname)
            return {"text": of_code(function.__code__), "lines": lines_of(function.__code__), "shared": []}
    except LookupError as error:
        return {"text": ABSENT if isinstance(error, KeyError) else str(error), "lines": [], "shared": []}
    shared = _shared(value) if isinstance(holder, ModuleType) and callable(value) else []
    return {"text": of_value(value), "lines": [], "shared": shared}


def _shared(value: Any) -> list[str]:
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return sorted({f"{m.__name__}.{alias}" for m in modules for alias, v in list(vars(m).items()) if v is value})


def difference(found: str, expected: str) -> str:
    """The first difference between two descriptions, for messages."""
    for number, (one, other) in enumerate(zip(found.splitlines(), expected.splitlines())):
        if one != other:
            return f"line {number} of its description is {one.strip()!r}, not {other.strip()!r}"
    return f"its description has {len(found.splitlines())} lines, not {len(expected.splitlines())}"


def place(verb: str, module: str, qualname: str) -> str:
    """What a change affects: a function's code or its name; patches may change both for one function."""
    return f"{'the code of ' * (verb == 'Edit')}{module}:{qualname}"


def seen(changes: list[Mapping[str, str]]) -> dict[str, Any]:
    """`change` of each, by `place`."""
    return {place(**each): change(each["verb"], each["module"], each["qualname"]) for each in changes}
