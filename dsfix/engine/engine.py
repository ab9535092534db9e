"""The patches of this process: what has become of each, applied as their modules are imported.

dsfix never stops a job on its own account: whatever goes wrong here ends as an outcome and one warning, with DeepSpeed
as it was; under DSFIX_STRICT=1 it is a StrictError instead.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, Union

from ..patch import Edit, Patch, Provide
from . import anchors, attributes, edit, hooks, log, registry, versions
from . import verdict as judge
from .memory import Memory
from .outcome import REMEDY, Outcome, Refused, StrictError, UnknownPatch
from .registry import Entry
from .settings import Settings

Handle = Union[edit.EditHandle, attributes.AttributeHandle]


@dataclass
class State:
    """One patch in this process. `done` holds, per module, what `revert` has to undo; `past`, what it has to undo in
    modules that have been executed again."""

    entry: Entry
    outcome: Outcome
    reason: str
    done: dict[str, list[Handle]] = field(default_factory=dict)
    past: list[tuple[str, list[Handle]]] = field(default_factory=list)
    judged: bool = False
    lock: Any = field(default_factory=threading.RLock)


class Engine:
    """All patches of the catalogue under one set of settings; `on_change` is called after outcomes have changed."""

    def __init__(self, settings: Settings, on_change: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self.on_change = on_change
        self.finder = hooks.Finder(self.imported, self.withdraw)
        self.states: dict[str, State] = {}
        self.memory = Memory()

    def activate(self) -> None:
        """Gates every patch by version and watches the modules of those that may apply."""
        for complaint in registry.complaints(self.settings):
            self._warn(complaint)
        for entry in registry.catalogue().values():
            self.states[entry.id] = self._start(entry)
        waiting = [state for state in self.states.values() if state.outcome is Outcome.PENDING]
        if not self.settings.disable:
            self.finder.watch(["deepspeed", *(name for state in waiting for name in state.entry.patch.modules)])
            for name in self.finder.names & sys.modules.keys():
                hooks.wait_for(name)
        self._catch_up()
        if hooks.executed("deepspeed") and not self.settings.disable:
            log.announce(self.summary())
        self.on_change()

    def _start(self, entry: Entry) -> State:
        try:
            settled = judge.before_source(entry, self.settings)
        except Exception as error:  # a declaration that cannot be evaluated
            self._warn(f"patch {entry.id} is left out: {_describe(error)}")
            return State(entry, Outcome.FAILED, _describe(error))
        if settled is not None:
            return State(entry, settled.outcome, settled.reason)
        return State(entry, Outcome.PENDING, _waits(entry.patch.modules))

    def imported(self, module: ModuleType) -> None:
        """The post-import hook: a watched module has just been executed, for the first time or again."""
        try:
            for state in self.states.values():
                if module.__name__ in state.entry.patch.modules:
                    self._advance(state, module)
            self._catch_up()
            if module.__name__ == "deepspeed":
                log.announce(self.summary())
                anchors.forget()
            if module.__name__ == "deepspeed" or hooks.executed("deepspeed"):
                self.memory.save()
            self.on_change()
        except StrictError:
            with contextlib.suppress(StrictError):  # of the next patch
                self.on_change()  # what stopped the job belongs into its report
            raise
        except Exception as error:
            log.warn(f"after the import of {module.__name__}: {_describe(error)}")

    def _catch_up(self) -> None:
        """Modules that were under way when they began to be watched, and have been executed since."""
        for state in self.states.values():
            if state.outcome is Outcome.PENDING:
                for name in state.entry.patch.modules:
                    module = hooks.executed(name)
                    if module is not None and name not in state.done:
                        self._advance(state, module)

    def _advance(self, state: State, module: ModuleType) -> None:
        with state.lock:
            if state.outcome is not Outcome.PENDING and not state.done:
                if self.settings.strict and state.outcome.trouble:
                    self._complain(state)  # of an import that is tried again, too
                return
            name = module.__name__
            if name in state.done and all(each.in_force(module) for each in state.done[name]):
                return  # executed again, and the change has outlived it
            try:
                self._judge_once(state)
                handles = apply(state.entry, module, self.memory)
                if name in state.done:
                    state.past.append((name, state.done[name]))
                state.done[name] = handles
            except Refused as refused:
                self._out(state, refused.outcome, refused.reason)
            except Exception as error:
                self._out(state, Outcome.FAILED, _describe(error))
            else:
                missing = [name for name in state.entry.patch.modules if name not in state.done]
                state.outcome = Outcome.PENDING if missing else Outcome.APPLIED
                state.reason = _waits(missing) if missing else _applied(state.entry.patch)

    def _judge_once(self, state: State) -> None:
        """All changes are looked at before the first is made: all or nothing."""
        if state.judged:
            return
        patch = state.entry.patch
        if patch.before is not None and hooks.executed(patch.before) is not None:
            raise Refused(Outcome.TOO_LATE, f"{patch.before} was imported before dsfix")
        verdict = judge.by_source(patch, self.memory)
        if verdict.outcome is not Outcome.PENDING:
            raise Refused(verdict.outcome, verdict.reason)
        state.judged = True

    def _out(self, state: State, outcome: Outcome, reason: str) -> None:
        state.outcome, state.reason = outcome, reason
        left = self._undo(state)
        if left:
            state.outcome, state.reason = Outcome.FAILED, f"{reason}; {left}"
        if state.outcome.trouble:
            self._complain(state)

    def _complain(self, state: State) -> None:
        remedy = REMEDY[state.outcome].format(id=state.entry.id)
        self._warn(f"{state.entry.id} is {state.outcome.value}, not applied: {state.reason}. Remedy: {remedy}")

    def _undo(self, state: State) -> str:
        """Takes back all that was done; returns what could not be, as a sentence."""
        left = []
        for name, handles in (*state.done.items(), *reversed(state.past)):
            for handle in reversed(handles):
                try:
                    handle.undo()
                except Exception as error:
                    left.append(f"the change in {name} could not be taken back: {_describe(error)}")
        state.done.clear()
        state.past.clear()
        return "; ".join(left)

    def _warn(self, message: str) -> None:
        if self.settings.strict:
            raise StrictError(f"dsfix: {message}") from None
        log.warn(message)

    def revert(self, patch_id: str) -> None:
        """Takes one patch back for the rest of this process.

        Raises:
            UnknownPatch: no patch has this id.
        """
        if patch_id not in self.states:
            raise UnknownPatch(patch_id, list(self.states))
        state = self.states[patch_id]
        with state.lock:
            if state.done or state.outcome is Outcome.PENDING:
                self._out(state, Outcome.DISABLED, "reverted by dsfix.revert")
        self.on_change()

    def withdraw(self) -> None:
        """Takes back everything and watches nothing any more."""
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        for state in self.states.values():
            with state.lock:
                self._undo(state)

    def forked(self) -> None:
        """In the child of a fork: another thread of the parent may have held a lock, and is not here to release it."""
        for state in self.states.values():
            state.lock = threading.RLock()

    def look_again(self) -> None:
        """Brings the outcomes up to date: an applied patch whose target somebody has replaced since is a conflict."""
        self._catch_up()
        for state in self.states.values():
            with state.lock:
                if not state.done or state.outcome is Outcome.PENDING:
                    continue
                if all(map(_in_force, state.done, state.done.values())):
                    state.outcome, state.reason = Outcome.APPLIED, _applied(state.entry.patch)
                else:
                    state.outcome = Outcome.CONFLICT
                    state.reason = "was applied, and another package has replaced its target since"

    def summary(self) -> str:
        """One line on what became of the patches."""
        about = versions.described("deepspeed", "torch")
        counts = []
        for outcome in Outcome:
            ids = [state.entry.id for state in self.states.values() if state.outcome is outcome]
            if ids:
                named = outcome in (Outcome.APPLIED, Outcome.PENDING) or outcome.trouble
                counts.append(f"{len(ids)} {outcome.value}" + (f" ({', '.join(ids)})" if named else ""))
        return f"{about}: {', '.join(counts) or 'no patches'}"


def apply(entry: Entry, module: ModuleType, memory: Memory) -> list[Handle]:
    """Makes the patch's changes in one module that has been executed; none of them where one does not fit.

    Raises:
        Refused: a change does not fit; nothing has been changed then.
    """
    changes = [c for c in entry.patch.changes if c.module == module.__name__]
    handles: list[Handle] = []
    try:
        edits = [c for c in changes if isinstance(c, Edit)]
        if edits:
            handles.append(edit.make(entry.id, module, edits, memory))
        for change in changes:
            if isinstance(change, Provide):
                provided = attributes.provide(module, change)
                handles += [provided] if provided is not None else []
            elif not isinstance(change, Edit):
                handles.append(attributes.substitute(module, change))
        if not handles:
            names = ", ".join(change.qualname for change in changes)
            raise Refused(Outcome.ALREADY_FIXED, f"{module.__name__} has {names}")
    except BaseException:
        for handle in reversed(handles):
            handle.undo()
        raise
    return handles


def _in_force(name: str, handles: list[Handle]) -> bool:
    module = hooks.executed(name)
    return module is None or all(handle.in_force(module) for handle in handles)


def _waits(modules: Iterable[str]) -> str:
    return f"waits for the import of {', '.join(modules)}"


def _applied(patch: Patch) -> str:
    return "; ".join(dict.fromkeys(f"{type(c).__name__} of {c.target}" for c in patch.changes))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
