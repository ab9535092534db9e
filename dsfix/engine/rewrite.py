"""The change Edit: swaps a function's code object in place, and back.

All edits of one function belong to one `_EditedFunction`: for any subset of them, applied in any order, the code is
compiled from the file's own source with exactly those edits.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import functools
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..outcome import ChangeRefused, Outcome
from ..patch import Edit
from . import anchors
from .attributes import raw_attribute
from .cache import Cache
from .source import FunctionNode, FunctionSource, block_at, exact_imports, imports, parsed_functions, split_target

_ANNOTATIONS = __future__.annotations.compiler_flag  # the only future statement that Python 3.9 and later obey
_KIND_FLAGS = 0x20 | 0x80 | 0x100 | 0x200  # generator, coroutine, iterable coroutine, asynchronous generator
_DESCRIPTORS = (staticmethod, classmethod, property, functools.partial, functools.cached_property)
_WRAPPED_ATTRIBUTES = ("__func__", "fget", "fset", "fdel", "func")
_MAX_DECORATORS = 8
_AT: dict[str, Any] = {"lineno": 1, "col_offset": 0}
_TYPE_PARAMS: dict[str, Any] = {"type_params": []} if "type_params" in ast.ClassDef._fields else {}  # Python 3.12

lock = threading.RLock()
# never removed from edited modules: calls of a reverted function may still be running
added_globals: dict[str, Any] = {}
_sites: dict[FunctionType, _EditedFunction] = {}


def forked() -> None:
    """Replaces the lock in a forked child: a thread of the parent may have held it, and does not exist here."""
    global lock
    lock = threading.RLock()


class EditHandle:
    """The edits that one patch made in one module; `undo` reverts them."""

    def __init__(self, patch_id: str, cache: Cache) -> None:
        self.patch_id, self.cache = patch_id, cache
        self.sites: list[_EditedFunction] = []

    def undo(self) -> None:
        """Reverts the edits of every function that no other tool has changed. Raises ChangeRefused if one was."""
        refused = []
        with lock:
            while self.sites:
                site = self.sites.pop()
                try:
                    site.compose({name: each for name, each in site.edits.items() if name != self.patch_id}, self.cache)
                except ChangeRefused as error:
                    refused.append(error)
        if refused:
            raise refused[0]

    def in_force(self, module: ModuleType) -> bool:
        """Whether the module's names still lead to the edited functions."""
        return all(site.in_force(module) for site in self.sites)


def make(patches: Mapping[str, Sequence[Edit]], module: ModuleType, cache: Cache) -> dict[str, EditHandle]:
    """Makes all edits of these patches in one module, or none; a function that several edit is compiled once. Raises
    ChangeRefused: with the outcome and the reason; nothing has been changed then."""
    handles = {patch_id: EditHandle(patch_id, cache) for patch_id in patches}
    edits_by_site: dict[str, dict[str, list[Edit]]] = {}
    for patch_id, edit in _flattened(patches):
        edits_by_site.setdefault(split_target(edit.qualname)[0], {}).setdefault(patch_id, []).append(edit)
    try:
        for outer, edits in edits_by_site.items():
            with lock:
                function = find_function(module, outer)
                site = _sites.setdefault(function, _EditedFunction(function, outer))  # a reload makes a new function
                for patch_id in edits:
                    handles[patch_id].sites.append(site)
                site.compose({**site.edits, **edits}, cache)
    except BaseException:
        for handle in handles.values():
            handle.undo()
        raise
    return handles


class _EditedFunction:
    """One function that is edited: its original code, and the edits by patch id."""

    def __init__(self, function: FunctionType, qualname: str) -> None:
        self.function, self.qualname = function, qualname
        self.original = self.current = function.__code__
        self.versions = [self.original]  # every code object the function has had: closures may use any of them
        self.edits: dict[str, list[Edit]] = {}

    def compose(self, edits: dict[str, list[Edit]], cache: Cache) -> None:
        """Makes exactly these edits active. Raises ChangeRefused, with nothing changed, if they do not fit."""
        if edits == self.edits:
            return
        if self.function.__code__ is not self.current:
            raise ChangeRefused(Outcome.CONFLICT, f"another tool has changed the code of {self.qualname}")
        pairs = _flattened(edits)
        new = cache.code(self.original, pairs, lambda: self._compiled(pairs)) if pairs else self.original
        swaps = [(self.function, new), *self._closures(new, (*pairs, *_flattened(self.edits)))]
        before = [(function, function.__code__) for function, _ in swaps]
        self.versions.append(new)
        self.function.__globals__.update(added_globals)
        try:
            for function, code in swaps:
                function.__code__ = code
            self.edits, self.current = edits, new
        except BaseException:
            for function, code in before:
                function.__code__ = code
            raise

    def _compiled(self, pairs: list[tuple[str, Edit]]) -> CodeType:
        block, imported = self._source
        return compile_edited(block, self.qualname, self.original, imported, pairs)

    @functools.cached_property
    def _source(self) -> tuple[FunctionSource, frozenset[str]]:
        """The function and the imported names, read once: the file may have changed by the time of a revert."""
        path = self.original.co_filename
        block = block_at(path, self.original.co_firstlineno)
        if block is None:
            raise ChangeRefused(Outcome.DRIFTED, f"the source of {self.qualname} cannot be read from {path}")
        return block, imports_of(block, self.qualname, self.original)

    def _closures(self, new: CodeType, pairs: Iterable[tuple[str, Edit]]) -> Iterator[tuple[FunctionType, CodeType]]:
        """The existing closures of edited nested functions (a decorator's, say), with their new code."""
        for names in {tuple(split_target(edit.qualname)[1]) for _, edit in pairs} - {()}:
            olds = [nested_code(version, names) for version in self.versions if _references(version, names) != _UNUSED]
            inner = nested_code(new, names)
            referrers = gc.get_referrers(*olds) if olds else []  # traverses everything that torch has loaded
            yield from ((referrer, inner) for referrer in referrers if isinstance(referrer, FunctionType))

    def in_force(self, module: ModuleType) -> bool:
        try:
            function = find_function(module, self.qualname)
        except ChangeRefused:
            return False
        return function is self.function and function.__code__ is self.current


def _flattened(edits: Mapping[str, Sequence[Edit]]) -> list[tuple[str, Edit]]:
    return [(patch_id, edit) for patch_id, several in sorted(edits.items()) for edit in several]


def find_function(module: ModuleType, qualname: str) -> FunctionType:
    """The function of that name that was defined in the module's own file, beneath any decorators.

    Raises ChangeRefused: drifted if the name does not exist, conflict if it leads only to functions of other files.
    """
    raw = raw_attribute(module, qualname)[2]
    name, path = qualname.rpartition(".")[2], getattr(module, "__file__", None) or ""
    strangers: list[FunctionType] = []
    for function in _functions_beneath(raw):
        code, file = function.__code__, function.__code__.co_filename
        named = code.co_name == name and getattr(code, "co_qualname", qualname) == qualname  # Python 3.11
        if named and (file == path or os.path.realpath(file) == os.path.realpath(path)):
            return function
        strangers.append(function)
    if not strangers:
        raise ChangeRefused(Outcome.DRIFTED, f"{qualname} is of type {type(raw).__name__}, not a Python function")
    # prefers a function of another package to one of the package's own decorators
    own = tuple(getattr(sys.modules.get(module.__name__.partition(".")[0]), "__path__", ()))
    stranger = min(strangers, key=lambda each: each.__code__.co_filename.startswith(own))
    raise ChangeRefused(
        Outcome.CONFLICT,
        f"{qualname} has been replaced by {stranger.__module__}.{stranger.__qualname__} "
        f"({stranger.__code__.co_filename}:{stranger.__code__.co_firstlineno})",
    )


def _functions_beneath(value: Any) -> Iterator[FunctionType]:
    """Every Python function under `value`'s decorators: what they store as an attribute or close over.

    Runs none of their code, and follows only callables: an object that keeps the function elsewhere is not a decorator.
    """
    queue, seen = deque([(value, 0)]), set[int]()
    while queue:
        item, depth = queue.popleft()
        kind = type(item)  # isinstance would ask the object for its __class__
        if id(item) in seen or depth > _MAX_DECORATORS or not (callable(item) or issubclass(kind, _DESCRIPTORS)):
            continue
        seen.add(id(item))
        if kind is FunctionType:
            yield item
            inner = [*_contents(item.__closure__ or ()), *vars(item).values()]
        elif issubclass(kind, (type, ModuleType)):
            inner = []
        elif issubclass(kind, (MethodType, *_DESCRIPTORS)):
            inner = [getattr(item, name, None) for name in _WRAPPED_ATTRIBUTES]
        else:
            inner = [item.__wrapped__] if hasattr(kind, "__wrapped__") else []  # a proxy in C
            with contextlib.suppress(AttributeError):
                inner += object.__getattribute__(item, "__dict__").values()
        queue.extend((each, depth + 1) for each in inner)


def _contents(cells: Iterable[CellType]) -> Iterator[Any]:
    for cell in cells:
        with contextlib.suppress(ValueError):  # an empty one
            yield cell.cell_contents


def imports_of(block: FunctionSource, qualname: str, code: CodeType) -> frozenset[str]:
    """The imported names with which the function, compiled alone, equals `code`, the function in memory.

    Raises ChangeRefused, a conflict, if none do.
    """
    for names_of in (imports, exact_imports):
        names = names_of(block.path)
        if _equal(_compile(block.tree(), qualname, code, names), code):
            return names
    raise ChangeRefused(
        Outcome.CONFLICT,
        f"{qualname} does not match {block.path}:{block.first}: "
        "another tool has modified it, or the file has changed since the import",
    )


def compile_edited(
    block: FunctionSource, qualname: str, like: CodeType, imported: frozenset[str], pairs: Sequence[tuple[str, Edit]]
) -> CodeType:
    """The code of the function with these edits (patch id, edit). Raises ChangeRefused if they do not fit."""
    node = parsed_functions.pop(block, None) or block.parse()  # edited in place, so no longer shared
    anchors.apply(pairs, node)
    new = _compile(node, qualname, like, imported)
    for names in {tuple(split_target(edit.qualname)[1]) for _, edit in pairs} | {()}:
        _check_swappable(nested_code(like, names), nested_code(new, names), ".".join((qualname, *names)))
    return new


def _compile(node: FunctionNode, qualname: str, like: CodeType, imported: frozenset[str]) -> CodeType:
    """The code object of `node`, compiled as if in the place of `like`: same classes, future flags and file.

    `imported`: the names that the file imports; Python 3.11 and later compile `name.attribute()` differently for them.
    """
    body: ast.stmt = node
    for name in reversed(qualname.split(".")[:-1]):  # for name mangling, `__class__` and the qualified name
        body = ast.ClassDef(name=name, bases=[], keywords=[], body=[body], decorator_list=[], **_TYPE_PARAMS, **_AT)
    tree = ast.Module(body=[*_imports(imported), body], type_ignores=[])
    compiled = compile(tree, like.co_filename, "exec", flags=like.co_flags & _ANNOTATIONS, dont_inherit=True)
    for code in _nested(compiled):
        if code.co_name == like.co_name and code.co_firstlineno == like.co_firstlineno:
            return code
    raise ChangeRefused(Outcome.DRIFTED, f"{qualname} is not at {like.co_filename}:{like.co_firstlineno}")


@functools.lru_cache(maxsize=8)
def _imports(names: frozenset[str]) -> list[ast.Import]:
    return [ast.Import(names=[ast.alias(name, **_AT) for name in names], **_AT)] if names else []


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def nested_code(code: CodeType, names: Sequence[str]) -> CodeType:
    """The code object nested in `code` under these names."""
    for name in names:
        code = next(inner for inner in _nested(code) if inner.co_name == name)
    return code


def _references(code: CodeType, names: Sequence[str]) -> int:
    """The reference count of the nested code: references from the code around it, closures and frames."""
    return sys.getrefcount(nested_code(code, names))


_UNUSED = _references((lambda: lambda: None).__code__, ["<lambda>"])
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    _UNUSED = 0  # constants are not counted there


def _equal(one: CodeType, other: CodeType) -> bool:
    """Equality of what is executed; columns, which `-X no_debug_ranges` omits, are ignored."""
    return one == other or _without_positions(one) == _without_positions(other)


def _without_positions(code: CodeType) -> CodeType:
    constants = tuple(_without_positions(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    if hasattr(code, "co_positions"):  # Python 3.11
        code = code.replace(co_linetable=b"")
    return code.replace(co_consts=constants)


def _check_swappable(old: CodeType, new: CodeType, qualname: str) -> None:
    """Raises ChangeRefused(failed) if `new` cannot replace `old`: different cells, signature or kind."""
    for what in ("co_freevars", "co_argcount", "co_kwonlyargcount", "co_posonlyargcount"):
        if getattr(old, what) != getattr(new, what):
            raise ChangeRefused(Outcome.FAILED, f"the edit would change {what} of {qualname}")
    if (old.co_flags ^ new.co_flags) & _KIND_FLAGS:
        raise ChangeRefused(Outcome.FAILED, f"the edit would turn {qualname} into a different kind of function")
