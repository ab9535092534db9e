"""The patches of this process and their outcomes. Each is applied when its modules are imported.

dsfix never stops a job: any error here becomes an outcome and one warning, and DeepSpeed stays unpatched. Under
DSFIX_STRICT=1 it raises StrictError instead.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, NamedTuple, Union

from .. import log, versions
from ..catalogue import registry
from ..catalogue.registry import Summary
from ..outcome import REMEDY, ChangeRefused, Outcome, StrictError, UnknownPatch, error_text
from ..patch import Edit, Patch, Provide, Replace
from ..settings import Settings
from . import anchors, attributes, hooks, rewrite, verdict
from .cache import Cache

Handle = Union[rewrite.EditHandle, attributes.AttributeHandle]


class ExecutedModule(NamedTuple):
    """A module that has been executed: imported, or run as a program, whose `__name__` is `__main__`."""

    name: str
    program: bool

    def __str__(self) -> str:
        return f"{self.name} as a program" if self.program else self.name


@dataclass
class PatchState:
    """One patch in this process. `handles`: what `revert` has to undo, per module or program; `stale`: the same for
    earlier executions of these modules. `modules`: those that the patch changes, if it may apply."""

    summary: Summary
    cache: Cache
    outcome: Outcome
    reason: str
    modules: tuple[str, ...] = ()
    handles: dict[ExecutedModule, list[Handle]] = field(default_factory=dict)
    stale: list[tuple[ExecutedModule, list[Handle]]] = field(default_factory=list)
    judged: bool = False
    lock: Any = field(default_factory=threading.RLock)

    @functools.cached_property
    def patch(self) -> Patch:
        """Known only for patches that may apply; without what only commands need."""
        return registry.patch(self.summary, self.cache.cached)

    @property
    def pending_modules(self) -> list[str]:
        """The modules that it has not changed yet, whether imported or run as a program."""
        done = {place.name for place in self.handles}
        return [name for name in self.modules if name not in done]

    @property
    def in_force(self) -> bool:
        made = [(hooks.executed(place.name), handles) for place, handles in self.handles.items() if not place.program]
        return all(handle.in_force(module) for module, handles in made if module is not None for handle in handles)


class Engine:
    """All patches, under one set of settings. Calls `on_change` when outcomes change, `on_deepspeed` after imports."""

    def __init__(
        self,
        settings: Settings,
        on_change: Callable[[], None] = lambda: None,
        on_deepspeed: Callable[[Engine], None] = lambda engine: None,
    ) -> None:
        self.settings, self.on_change, self.on_deepspeed = settings, on_change, on_deepspeed
        self.finder = hooks.Finder(self.imported, self.withdraw, self._before)
        self.states: dict[str, PatchState] = {}
        self.sourceless = False
        self.cache = Cache()

    def activate(self) -> None:
        """Gates every patch by version and watches the modules of those that may apply."""
        summaries, broken = registry.index(self.cache.cached)
        about_settings = self.settings.complaints_about(summaries)
        once = about_settings if self.settings.strict or log.logs_for_job() else []
        for complaint in (*once, *map(str, broken)):
            self._warn(complaint)
        self._gate(summaries.values())
        for name in self.finder.names:
            hooks.wait_for(name)
        self._catch_up()
        anchors.forget(texts=True)
        self.on_change()

    def _gate(self, summaries: Iterable[Summary]) -> None:
        self.states.update([(summary.id, self._start(summary)) for summary in summaries])
        if not self.settings.disable:
            self.finder.watch(["deepspeed", *(name for state in self.states.values() for name in state.modules)])

    def _before(self, name: str) -> None:
        """Called before a watched module is executed: a different DeepSpeed may be found than when the gate ran."""
        try:
            if name == "deepspeed" and versions.path_changed():
                states = [state for state in self.states.values() if state.outcome is not Outcome.DISABLED]
                for state in states:
                    self._undo(state)
                self._gate(state.summary for state in states)
                self._catch_up()
        except StrictError:
            raise
        except Exception as error:
            log.warn(f"dsfix failed before the import of {name}: {error_text(error)}")

    def _start(self, summary: Summary) -> PatchState:
        try:
            settled = verdict.before_source(summary, self.settings, self.cache)
            if settled is not None:
                return PatchState(summary, self.cache, settled.outcome, settled.reason)
            state = PatchState(summary, self.cache, Outcome.PENDING, "")
            state.modules = state.patch.modules
            state.reason = _waiting_reason(state.modules)
            return state
        except Exception as error:  # a declaration that cannot be evaluated
            self._warn(f"patch {summary.id} is skipped: {error_text(error)}")
            return PatchState(summary, self.cache, Outcome.FAILED, error_text(error))

    def imported(self, module: ModuleType, name: str) -> None:
        """The post-import hook: a watched module has just been executed, for the first time or again.

        name: the module's import name, also if it is run as a program, whose `__name__` is `__main__`.
        """
        try:
            mine = [state for state in self.states.values() if name in state.modules]
            with self._edited(mine, module, name) as handles:
                for state in mine:
                    self._advance(state, module, name, handles)
            self._catch_up()
            if name == "deepspeed":
                self.on_deepspeed(self)
            if hooks.executed("deepspeed") or name == "deepspeed":
                self.cache.save()
                anchors.forget(texts=True)
            self.on_change()
        except StrictError:
            with contextlib.suppress(StrictError):  # a later patch may raise, too
                self.on_change()  # the report includes the failure
            raise
        except Exception as error:
            log.warn(f"dsfix failed after the import of {name}: {error_text(error)}")

    def _catch_up(self) -> None:
        """Handles modules whose import was under way when they were first watched, and has ended since."""
        for state in self.states.values():
            if state.outcome is Outcome.PENDING:
                for name in state.modules:
                    module = hooks.executed(name)
                    if module is not None and ExecutedModule(name, False) not in state.handles:
                        self._advance(state, module, name, {})
        anchors.forget()  # else each garbage collection traverses all trees

    @contextlib.contextmanager
    def _edited(self, states: Sequence[PatchState], module: ModuleType, name: str) -> Iterator[dict[str, Handle]]:
        """Makes the edits of all patches that wait for the module together, or none if not all of them fit."""
        edits, handles = {}, dict[str, Handle]()
        for state in states:
            with state.lock, self._reject_on_error(state):
                if state.outcome is Outcome.PENDING and name in state.pending_modules:
                    self._judge_once(state)
                    edits[state.summary.id] = _edits(state.patch, name)
        try:
            handles.update(rewrite.make(edits, module, self.cache))
        except Exception:  # then each patch is applied alone, and the failing one gives the reason
            handles.clear()
        try:
            yield handles
        finally:
            for state in states:
                handle = handles.get(state.summary.id)
                with state.lock:
                    if handle is not None and not any(handle in done for done in state.handles.values()):
                        handle.undo()  # of a patch that was not applied after all

    def _advance(self, state: PatchState, module: ModuleType, name: str, made: dict[str, Handle]) -> None:
        with state.lock:
            if state.outcome is not Outcome.PENDING and not state.handles:
                if self.settings.strict and state.outcome.trouble:
                    self._complain(state)  # also if a failed import is tried again
                return
            place = ExecutedModule(name, module.__name__ != name)
            if place in state.handles and all(each.in_force(module) for each in state.handles[place]):
                return  # executed again, but the change is still there
            with self._reject_on_error(state):
                self._judge_once(state)
                edited = made.get(state.summary.id)
                handles = apply(state.summary.id, state.patch, module, self.cache, name, edited)
                if place in state.handles:
                    state.stale.append((place, state.handles[place]))
                state.handles[place] = handles
                missing = state.pending_modules
                state.outcome = Outcome.PENDING if missing else Outcome.APPLIED
                state.reason = _waiting_reason(missing) if missing else _applied_reason(state.patch)

    @contextlib.contextmanager
    def _reject_on_error(self, state: PatchState) -> Iterator[None]:
        """An exception disables this patch only."""
        try:
            yield
        except ChangeRefused as refused:
            self._reject(state, refused.outcome, refused.reason)
        except Exception as error:
            self._reject(state, Outcome.FAILED, error_text(error))

    def _judge_once(self, state: PatchState) -> None:
        """Locates all changes before the first is made."""
        if not state.judged:
            with rewrite.lock:  # an edit changes trees that this reads
                refusal = verdict.by_source(state.patch, self.cache)
            if refusal.outcome is not Outcome.PENDING:
                raise ChangeRefused(refusal.outcome, refusal.reason)
            state.judged = True

    def _reject(self, state: PatchState, outcome: Outcome, reason: str) -> None:
        left = self._undo(state)
        state.outcome, state.reason = (Outcome.FAILED, f"{reason}; {left}") if left else (outcome, reason)
        if state.outcome.trouble:
            self._complain(state)

    def _complain(self, state: PatchState) -> None:
        remedy = REMEDY[state.outcome].format(id=state.summary.id)
        if state.reason.endswith(verdict.NO_SOURCE):  # usually true of all modules: one warning is enough
            if self.sourceless and not self.settings.strict:
                return
            self.sourceless = True
            remedy = "reinstall DeepSpeed with its .py files, or set DSFIX_DISABLE=1; no function can be patched"
        self._warn(f"{state.summary.id} was not applied ({state.outcome.value}): {state.reason}. Remedy: {remedy}")

    def _undo(self, state: PatchState) -> str:
        """Reverts all changes; returns those that could not be reverted, as a sentence."""
        left = []
        with state.lock:
            for place, handles in (*state.handles.items(), *reversed(state.stale)):
                for handle in reversed(handles):
                    try:
                        handle.undo()
                    except Exception as error:
                        left.append(f"the change in {place} could not be reverted: {error_text(error)}")
            state.handles.clear()
            state.stale.clear()
        return "; ".join(left)

    def _warn(self, message: str) -> None:
        if self.settings.strict:
            raise StrictError(f"dsfix: {message}") from None
        log.warn(message)

    def revert(self, patch_id: str) -> None:
        """Reverts one patch for the rest of this process. Raises UnknownPatch."""
        if patch_id not in self.states:
            raise UnknownPatch(patch_id, list(self.states))
        state = self.states[patch_id]
        with state.lock:
            if state.handles or state.outcome is Outcome.PENDING:
                self._reject(state, Outcome.DISABLED, "reverted by dsfix.revert")
        self.on_change()

    def withdraw(self) -> None:
        """Reverts everything and stops watching imports."""
        self.finder.stop()
        for state in self.states.values():
            self._undo(state)

    def forked(self) -> None:
        """Replaces the locks in a forked child: a thread of the parent may have held one, and does not exist here."""
        rewrite.forked()
        for state in self.states.values():
            state.lock = threading.RLock()

    def refresh(self) -> None:
        """Updates the outcomes: an applied patch whose target has since been replaced is a conflict."""
        self._catch_up()
        for state in self.states.values():
            with state.lock:
                if state.handles and state.outcome is not Outcome.PENDING:
                    there = Outcome.APPLIED, _applied_reason(state.patch)
                    lost = Outcome.CONFLICT, "was applied, but another package has since replaced its target"
                    state.outcome, state.reason = there if state.in_force else lost


def apply(
    patch_id: str, patch: Patch, module: ModuleType, cache: Cache, name: str = "", edited: Handle | None = None
) -> list[Handle]:
    """Makes all of the patch's changes in one executed module, or none if one does not fit.

    name: the module's import name, if it is run as a program. edited: its edits, if they have been made. Raises
    ChangeRefused: a change does not fit; nothing has been changed then.
    """
    name = name or module.__name__
    changes = [change for change in patch.changes if change.module == name]
    handles = [edited] if edited is not None else list[Handle]()
    try:
        edits = _edits(patch, name)
        if edits and not handles:
            handles += rewrite.make({patch_id: edits}, module, cache).values()
        for change in changes:
            if isinstance(change, Replace):
                handles.append(attributes.replace_attribute(module, change))
            elif isinstance(change, Provide):
                handles += filter(None, [attributes.add_name(module, change)])
        if not handles:
            names = ", ".join(change.qualname for change in changes)
            raise ChangeRefused(Outcome.ALREADY_FIXED, f"{name} has {names}")
    except BaseException:
        for handle in reversed(handles):
            handle.undo()
        raise
    return handles


def _edits(patch: Patch, name: str) -> list[Edit]:
    return [change for change in patch.changes if isinstance(change, Edit) and change.module == name]


def _waiting_reason(modules: Iterable[str]) -> str:
    return f"waits for the import of {', '.join(modules)}"


def _applied_reason(patch: Patch) -> str:
    return "; ".join(dict.fromkeys(f"{type(c).__name__} of {c.target}" for c in patch.changes))
