"""The verb Edit: a function's code object swapped in place, and swapped back.

All edits of one function live in one `Site`: whatever subset of them is on, and in whatever order they came, the code
is compiled from the file's own source with exactly those edits.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Sequence
from types import CodeType, FunctionType, ModuleType

from ..patch import Edit
from . import anchors
from . import code as codes
from .imports import parsed_imported_names, quick_imported_names
from .memory import Memory
from .outcome import Outcome, Refused
from .source import Block, block_at, split_target

_lock = threading.RLock()  # looking for a function may run code of others, which may import a watched module


class Site:
    """One function that is edited: its source, its original code, and the edits by patch id."""

    def __init__(self, module: ModuleType, qualname: str, accessor: str) -> None:
        self.qualname, self.accessor = qualname, accessor
        self.function = codes.find_function(module, qualname, accessor)
        self.original = self.current = self.function.__code__
        self.versions = [self.original]  # every code that the function has had: closures may be of any of them
        self.edits: dict[str, list[Edit]] = {}

    @functools.cached_property
    def source(self) -> tuple[Block, frozenset[str]]:
        """The function as its file has it, and the names that the file imports."""
        code = self.original
        block = block_at(code.co_filename, code.co_firstlineno)
        if block is None:
            raise Refused(Outcome.DRIFTED, f"the source of {self.qualname} cannot be read from {code.co_filename}")
        for imported_names in (quick_imported_names, parsed_imported_names):
            imports = imported_names(code.co_filename)
            if codes.equal(codes.compile_function(block.tree(), self.qualname, code, imports), code):
                return block, imports
        raise Refused(
            Outcome.CONFLICT,
            f"{self.qualname} in memory is not what {code.co_filename}:{code.co_firstlineno} says: "
            "another tool has changed it, or the file has changed since it was imported",
        )

    def install(self, patch_id: str, edits: Sequence[Edit], memory: Memory) -> None:
        """Adds one patch's edits. Raises Refused, with nothing changed, where they do not fit."""
        self._check_mine()
        self._compose({**self.edits, patch_id: list(edits)}, memory)

    def remove(self, patch_id: str, memory: Memory) -> None:
        """Takes one patch's edits out; a function that somebody else has changed since is left alone."""
        if patch_id not in self.edits:
            return
        self._check_mine()
        self._compose({other: edits for other, edits in self.edits.items() if other != patch_id}, memory)

    def _check_mine(self) -> None:
        if self.function.__code__ is not self.current:
            raise Refused(Outcome.CONFLICT, f"another tool has changed the code of {self.qualname}")

    def _compose(self, edits: dict[str, list[Edit]], memory: Memory) -> None:
        new = self.original
        if edits:
            pairs = [(patch_id, edit) for patch_id, several in edits.items() for edit in several]
            new = memory.code(self.original, pairs, lambda: self._compiled(pairs))
        nested = {tuple(anchors.edit_path(e)) for several in (*edits.values(), *self.edits.values()) for e in several}
        swaps = [(self.function, new), *(swap for path in nested if path for swap in self._closures(new, path))]
        before = [(function, function.__code__) for function, _ in swaps]
        self.versions.append(new)
        try:
            for function, code in swaps:
                function.__code__ = code
            self.edits, self.current = edits, new
        except BaseException:
            for function, code in before:
                function.__code__ = code
            raise

    def _compiled(self, edits: list[tuple[str, Edit]]) -> CodeType:
        block, imports = self.source
        node = block.parse()
        anchors.apply(edits, node)
        new = codes.compile_function(node, self.qualname, self.original, imports)
        codes.check_swappable(self.original, new, self.qualname)
        return new

    def _closures(self, new: CodeType, path: tuple[str, ...]) -> list[tuple[FunctionType, CodeType]]:
        """The nested function's closures that exist already (a decorator made one, say), with their new code."""
        olds = [codes.nested_code(version, list(path)) for version in self.versions]
        inner = codes.nested_code(new, list(path))
        codes.check_swappable(olds[0], inner, ".".join((self.qualname, *path)))
        return [(closure, inner) for closure in gc.get_referrers(*olds) if isinstance(closure, FunctionType)]

    def in_force(self, module: ModuleType) -> bool:
        """Whether the module's name leads to this function, as it was edited."""
        try:
            found = codes.find_function(module, self.qualname, self.accessor)
        except Refused:
            return False
        return found is self.function and found.__code__ is self.current


_sites: dict[FunctionType, Site] = {}


class EditHandle:
    """The edits that one patch made in one module; `undo` takes them out again."""

    def __init__(self, patch_id: str, memory: Memory) -> None:
        self.patch_id, self.memory = patch_id, memory
        self.sites: list[Site] = []

    def undo(self) -> None:
        """Takes the edits out of every function that nobody else has changed. Raises Refused where one was."""
        refused = []
        with _lock:
            while self.sites:
                try:
                    self.sites.pop().remove(self.patch_id, self.memory)
                except Refused as error:
                    refused.append(error)
        if refused:
            raise refused[0]

    def in_force(self, module: ModuleType) -> bool:
        return all(site.in_force(module) for site in self.sites)


def make(patch_id: str, module: ModuleType, edits: Sequence[Edit], memory: Memory) -> EditHandle:
    """Makes all of a patch's edits in one module, all or none.

    Raises:
        Refused: with the outcome and the reason; nothing has been changed then.
    """
    by_function: dict[tuple[str, str], list[Edit]] = {}
    for edit in edits:
        outer, _, accessor = split_target(edit.qualname)
        by_function.setdefault((outer, accessor), []).append(edit)
    handle = EditHandle(patch_id, memory)
    try:
        for (outer, accessor), several in by_function.items():
            with _lock:
                site = _site(module, outer, accessor)
                handle.sites.append(site)
                site.install(patch_id, several, memory)
    except BaseException:
        handle.undo()
        raise
    return handle


def _site(module: ModuleType, qualname: str, accessor: str) -> Site:
    function = codes.find_function(module, qualname, accessor)
    site = _sites.get(function)
    if site is None:  # also after a reload, which made a new function
        site = _sites[function] = Site(module, qualname, accessor)
    return site
