"""The wrapper around `deepspeed.initialize` that calls the guards."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Callable

from .. import attributes, hooks, log
from ..outcome import Refused
from ..patch import Wrap
from ..settings import Settings
from . import GuardError

GUARDS: tuple[str, ...] = ("config",)
"""Modules of this package, in the order in which they look."""


@dataclass(frozen=True)
class Call:
    """One call of deepspeed.initialize: its arguments by name, and dsfix's settings."""

    arguments: dict[str, Any]
    settings: Settings

    @property
    def model(self) -> Any:
        return self.arguments.get("model")

    @property
    def config(self) -> Any:
        """A dict, a path, or None; as DeepSpeed itself looks for it."""
        config = self.arguments.get("config")
        if config is None:
            config = self.arguments.get("config_params")
        if config is None:
            config = getattr(self.arguments.get("args"), "deepspeed_config", None)
        return config


class Watch:
    """Puts the wrapper around `deepspeed.initialize` whenever deepspeed has been executed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.finder = hooks.Finder(self.imported, self.withdraw)
        self.handle: attributes.AttributeHandle | None = None

    def start(self) -> None:
        self.finder.watch(["deepspeed"])
        module = hooks.executed("deepspeed")
        if module is not None:
            self.imported(module)

    def imported(self, module: ModuleType) -> None:
        if not hasattr(module, "initialize") or (self.handle is not None and self.handle.in_force(module)):
            return
        try:
            self.handle = attributes.substitute(module, Wrap("deepspeed:initialize", self.initialize))
        except Refused as refused:
            log.warn(f"deepspeed.initialize is not looked at: {refused.reason}")

    def withdraw(self) -> None:
        """Takes the wrapper back and watches nothing any more."""
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        if self.handle is not None:
            self.handle.undo()

    def initialize(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """What stands in for deepspeed.initialize.

        Raises:
            GuardError: a guard found what would end the job later, or spoil its results.
        """
        try:
            call = Call(inspect.signature(wrapped).bind(*args, **kwargs).arguments, self.settings)
        except TypeError:  # DeepSpeed says it better
            return wrapped(*args, **kwargs)
        guards = [importlib.import_module(f"{__package__}.{name}") for name in GUARDS]
        for guard in guards:
            _ask(guard, "before", call)
        result = wrapped(*args, **kwargs)
        for guard in guards:
            _ask(guard, "after", call, result[0])
        return result


def _ask(guard: ModuleType, question: str, *arguments: Any) -> None:
    if not hasattr(guard, question):
        return
    try:
        getattr(guard, question)(*arguments)
    except GuardError:
        raise
    except Exception as error:
        name = guard.__name__.rpartition(".")[2]
        log.warn(f"the guard {name} failed and is left out: {type(error).__name__}: {error}")
