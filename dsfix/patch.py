"""What a patch file declares: one `Patch`, its changes (the four verbs) and the evidence that its bug is there.

Nothing here does any work: the engine (`dsfix.engine`) and the judge (`dsfix.engine.verdict`) read these declarations.
A *target* is written ``"package.module:Class.function"``, a nested function ``"package.module:outer.<locals>.inner"``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Union


class Severity(enum.Enum):
    """What the bug does to a job."""

    WRONG_RESULT = "wrong-result"
    CRASH = "crash"
    HANG = "hang"
    LEAK = "leak"
    IMPORT = "import"
    USABILITY = "usability"


class _Targeted:
    """What has a target: the module that it is in, and the name there ("" for the module itself)."""

    target: str

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        return self.target.partition(":")[2]


@dataclass(frozen=True)
class Edit(_Targeted):
    """A change inside the body of one function; exactly one of `after`, `before`, `replace` is the anchor.

    The anchor is Python source, one or more statements or one expression, compared with the function by syntax tree
    (``not i in x`` and ``i not in x`` are the same);
    a body that is only ``...`` stands for any body. It has to occur exactly `count` times. `code` takes the anchor's
    line numbers, and the function's code object is swapped in place.
    """

    target: str
    code: str
    after: str | None = None
    before: str | None = None
    replace: str | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if sum(a is not None for a in (self.after, self.before, self.replace)) != 1:
            raise ValueError(f"Edit of {self.target}: give exactly one of after, before, replace")
        _check_target(self.target)

    @property
    def anchor(self) -> str:
        """The source of the anchor, whichever of the three places it is for."""
        return self.after or self.before or self.replace or ""


@dataclass(frozen=True)
class Replace(_Targeted):
    """Another object in place of a function, class or attribute: ``factory(original) -> replacement``.

    Names under which modules imported earlier hold the original follow.
    """

    target: str
    factory: Callable[[Any], Any]

    def __post_init__(self) -> None:
        _check_target(self.target)


@dataclass(frozen=True)
class Wrap(_Targeted):
    """A `wrapt.FunctionWrapper` around a function: ``wrapper(wrapped, instance, args, kwargs)``. Cold paths only."""

    target: str
    wrapper: Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

    def __post_init__(self) -> None:
        _check_target(self.target)


@dataclass(frozen=True)
class Provide:
    """A module-level name that `module` no longer has: ``factory(module) -> value``."""

    module: str
    name: str
    factory: Callable[[Any], Any]

    @property
    def target(self) -> str:
        return f"{self.module}:{self.name}"

    @property
    def qualname(self) -> str:
        return self.name


Change = Union[Edit, Replace, Wrap, Provide]


@dataclass(frozen=True)
class Source(_Targeted):
    """Evidence: `code` (statements or one expression, as an Edit's anchor) stands in the body of `target`.

    Without ``:function`` in the target, `code` stands at the module's top level.
    """

    target: str
    code: str


@dataclass(frozen=True)
class Patch:
    """One bug: where it is, what cures it, and how sure that is.

    title: one line, what users see, without a full stop.
    symptom: a regular expression that the traceback or the log of a job with the bug shows; "" where nothing shows it.
    upstream: links to issues and pull requests on GitHub.
    fixed_in: the first release after the affected ones; None where the newest has the bug.
    continued_by: the id of the patch for the releases after the affected ones, where they have the bug in other code.
    affects: PEP 440 specifiers per distribution, all of which must hold, e.g. ``{"deepspeed": ">=0.14.1,<0.14.3"}``.
    present: evidence in the source that the bug is there; together with the anchors of the edits it must tell the
        affected releases from all others without a version number, for forks and development builds.
    fixed: evidence in the source that somebody has fixed it already; any one suffices.
    before: a module that must not have been imported yet when the patch is applied.
    ranks, device: what `reproduce` needs; device is "cuda" (real or emulated) or "cpu".
    """

    title: str
    severity: Severity
    affects: Mapping[str, str]
    changes: tuple[Change, ...]
    symptom: str
    upstream: tuple[str, ...]
    fixed_in: str | None
    present: tuple[Source, ...] = ()
    fixed: tuple[Source, ...] = ()
    continued_by: str | None = None
    before: str | None = None
    default: bool = True
    ranks: int = 1
    device: str = "cuda"
    modules: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.changes:
            raise ValueError("a Patch needs at least one change")
        modules = dict.fromkeys(change.module for change in self.changes)
        object.__setattr__(self, "modules", tuple(modules))


class BugPresent(Exception):
    """Raised by `reproduce` when, and only when, this very bug was seen; the message says what was seen."""


class CannotTell(Exception):
    """Raised by `reproduce` when this machine cannot show the bug, with the reason, e.g. "needs two GPUs"."""


def _check_target(target: str) -> None:
    module, colon, qualname = target.partition(":")
    if not (module and colon and qualname):
        raise ValueError(f"target {target!r} is not of the form 'package.module:qualified.name'")
