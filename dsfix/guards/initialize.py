"""The wrapper around `deepspeed.initialize`, DistributedDataParallel and `init_distributed` that calls the guards."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from types import ModuleType
from typing import Any, Callable, NamedTuple

from .. import log
from ..engine import attributes, hooks
from ..outcome import ChangeRefused, Outcome, error_text
from ..patch import Replace
from ..settings import Settings
from . import GuardError

GUARDS: tuple[str, ...] = ("config_check", "device_map", "placement", "steps", "rank_check")
"""Modules of this package, in the order in which they run."""

DDP_GUARDS: tuple[str, ...] = ("ddp_device_map",)
"""The same for DistributedDataParallel."""

RANK_GUARDS: tuple[str, ...] = ("rank_check",)
"""The same for init_distributed, which deepspeed.initialize and zero.Init call before any collective."""

_DDP = "torch.nn.parallel.distributed:DistributedDataParallel.__init__"


class Call(NamedTuple):
    """A call of deepspeed.initialize or another watched function: its arguments by name, and dsfix's settings."""

    arguments: dict[str, Any]
    settings: Settings

    @property
    def model(self) -> Any:
        return self.arguments.get("model")

    @property
    def config(self) -> Any:
        """A dict, a path, or None; found as DeepSpeed finds it."""
        config = self.arguments.get("config")
        if config is None:
            config = self.arguments.get("config_params")
        if config is None:
            config = getattr(self.arguments.get("args"), "deepspeed_config", None)
        return config


class GuardHooks:
    """Wraps the three functions whenever their modules have been executed."""

    def __init__(self, settings: Settings) -> None:
        wraps = (
            Replace("deepspeed:initialize", _wrapped_by(GUARDS, settings)),
            Replace(_DDP, _wrapped_by(DDP_GUARDS, settings)),
            Replace("deepspeed.comm.comm:init_distributed", _wrapped_by(RANK_GUARDS, settings)),
        )
        self.changes = {wrap.module: wrap for wrap in wraps}
        self.finder = hooks.Finder(self.imported, self.withdraw)
        self.handles: dict[str, attributes.AttributeHandle] = {}

    def start(self) -> None:
        self.finder.watch(self.changes)
        for module in filter(None, map(hooks.executed, self.changes)):
            self.imported(module, module.__name__)

    def imported(self, module: ModuleType, name: str) -> None:
        change, handle = self.changes[name], self.handles.get(name)
        try:
            if handle is None or not handle.in_force(module):
                self.handles[name] = attributes.replace_attribute(module, change)
        except ChangeRefused as refused:
            if refused.outcome is not Outcome.DRIFTED:  # a module without the function needs no guard
                log.warn(f"{change.target} is not guarded: {refused.reason}")
        except Exception as error:  # a failing guard must not break the import
            log.warn(f"{change.target} is not guarded: {error_text(error)}")

    def withdraw(self) -> None:
        """Removes the wrappers and stops watching imports."""
        self.finder.stop()
        for handle in self.handles.values():
            with contextlib.suppress(ChangeRefused):  # wrapped again since
                handle.undo()


def _wrapped_by(names: tuple[str, ...], settings: Settings) -> Callable[[Any], Any]:
    """A factory of wrappers that run these guards around a function and raise their GuardErrors."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                made = Call(inspect.signature(original).bind(*args, **kwargs).arguments, settings)
            except TypeError:  # the call below raises a better error
                return original(*args, **kwargs)
            guards = list(names)
            _run(guards, "before", made)
            result = original(*args, **kwargs)
            _run(guards, "after", made, result)
            return result

        with contextlib.suppress(TypeError, ValueError, NameError):
            guarded.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]  # for getfullargspec
        return guarded

    return wrap


def _run(guards: list[str], when: str, *arguments: Any) -> None:
    """Calls `before` or `after` of each guard; one that fails is removed from the list."""
    for name in list(guards):
        try:
            guard = importlib.import_module(f"{__package__}.{name}")
            if hasattr(guard, when):
                getattr(guard, when)(*arguments)
        except GuardError:
            raise
        except Exception as error:
            guards.remove(name)
            log.warn(f"the guard {name} failed and was skipped: {error_text(error)}")
