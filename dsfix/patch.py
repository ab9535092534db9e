"""What a patch file declares: one `Patch`, its changes, and the evidence that its bug is present.

Nothing here does any work: `dsfix.engine` reads these declarations. A *target* is written
``"package.module:Class.function"``, a nested function ``"package.module:outer.<locals>.inner"``.
"""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Union

from .versions import satisfies

if TYPE_CHECKING:
    from .job import Job


RAN = "ran"
"""The effect of an Edit that reports only that its code ran, because only the device knows whether a result changed."""

EFFECTS = "_dsfix_effects"
"""The name of `dsfix.process.effects` in edited modules, because an import statement would cost more than the check."""


class Severity(enum.Enum):
    """What the bug does to a job, worst first."""

    WRONG_RESULT = "wrong-result"
    CRASH = "crash"
    HANG = "hang"
    LEAK = "leak"
    IMPORT = "import"
    USABILITY = "usability"


class _Targeted:
    target: str

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        """The name inside the module; "" for the module itself."""
        return self.target.partition(":")[2]


@dataclass(frozen=True, eq=False)
class Edit(_Targeted):
    """A change inside the body of one function; exactly one of `after`, `before`, `replace` is the anchor.

    The anchor is Python source, one or more statements or one expression, compared by syntax tree (``not i in x`` and
    ``i not in x`` are equal); a body that is only ``...`` matches any body. It must occur exactly `count` times.
    `code` takes the anchor's line numbers. It may call the functions in `uses` by their names.

    effect: a short past-tense phrase for the log, reported once, when `code` (or the statement around an expression)
    is first reached with `when` true, i.e. when the result first differs from unpatched DeepSpeed's. `when` must not
    read values from a device or call functions in `uses`. RAN if only the device knows. "" if a function in `uses`
    calls `took_effect`.
    """

    target: str
    code: str
    after: str | None = None
    before: str | None = None
    replace: str | None = None
    count: int = 1
    uses: tuple[Callable[..., Any], ...] = ()
    effect: str = ""
    when: str = "True"

    def __post_init__(self) -> None:
        if sum(a is not None for a in (self.after, self.before, self.replace)) != 1:
            raise ValueError(f"Edit of {self.target}: give exactly one of after, before, replace")
        _check_target(self.target)

    @property
    def anchor(self) -> str:
        """The source of the anchor, whether code goes after it, before it or in its place."""
        return self.after or self.before or self.replace or ""

    @property
    def code_with_imports(self) -> str:
        """`code` as it would be written into the file by hand, with the imports of what it uses."""
        imports = [f"from {use.__module__} import {use.__qualname__}\n" for use in self.uses]
        return "".join(imports) + textwrap.dedent(self.code)

    def effect_code(self, patch_id: str) -> str:
        """The statement before `code` that reports its effect, the first time only."""
        if not self.effect:
            return ""
        new, call = "is_unreported", f"took_effect({patch_id!r}, {self.effect!r})"
        if self.effect == RAN:
            new, call = "has_not_run", f"ran({patch_id!r})"
        return f"if {EFFECTS}.{new}({patch_id!r}) and ({self.when}):\n    {EFFECTS}.{call}\n"


@dataclass(frozen=True, eq=False)
class Replace(_Targeted):
    """A replacement for a function, class or attribute: ``factory(original) -> replacement``.

    Aliases of the original in modules imported earlier follow.
    """

    target: str
    factory: Callable[[Any], Any]

    def __post_init__(self) -> None:
        _check_target(self.target)


@dataclass(frozen=True, eq=False)
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


Change = Union[Edit, Replace, Provide]


@dataclass(frozen=True, eq=False)
class Source(_Targeted):
    """Evidence: `code` (statements or one expression, like an Edit's anchor) appears in the body of `target`.

    Without ``:function`` in the target, `code` appears in the module, outside functions and classes.
    """

    target: str
    code: str


@dataclass(frozen=True, eq=False)
class Patch:
    """One bug: where it is, what fixes it, and the evidence for both.

    title: one line, what users see, without a full stop.
    severity: what the bug does to a job.
    affects: PEP 440 specifiers per distribution, all of which must hold, e.g. ``{"deepspeed": ">=0.14.1,<0.14.3"}``.
        A range that begins at 0.12.0 says nothing about earlier releases, which have not been run.
    changes: the edits; all are made or none.
    symptom: a regular expression that matches the traceback or log of a job with the bug; "" if the bug is silent.
    upstream: link to an issue, pull request or commit -> what it did: "reported", "introduced", "fixed in 0.14.3".
    fixed_in: the first release after the affected ones; None if the newest release has the bug.
    present: evidence in the source that the bug is present; together with the edits' anchors it must distinguish the
        affected releases from all others without the version number, for forks and development builds.
    fixed: evidence in the source that it is fixed already; any one suffices.
    continued_by: the id of the patch for later releases that have the bug in different code.
    config: whether a job triggers the bug, from its config and model (see `dsfix.job.Job`); None if they do
        not show it.
    default: False for a patch that applies only when DSFIX_ALSO or DSFIX_ONLY names it.
    ranks, device: what `reproduce` needs; device is "cuda" (real or emulated) or "cpu".
    """

    title: str
    severity: Severity
    affects: Mapping[str, str]
    changes: tuple[Change, ...]
    symptom: str = ""
    upstream: Mapping[str, str] = field(default_factory=dict)
    fixed_in: str | None = None
    present: tuple[Source, ...] = ()
    fixed: tuple[Source, ...] = ()
    continued_by: str | None = None
    config: Callable[[Job], bool] | None = None
    default: bool = True
    ranks: int = 1
    device: str = "cuda"
    modules: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.changes:
            raise ValueError("a Patch needs at least one change")
        modules = dict.fromkeys(change.module for change in self.changes)
        object.__setattr__(self, "modules", tuple(modules))

    def as_text(self) -> list[list[tuple[Any, ...]]] | None:
        """The changes and the evidence as strings and numbers, for `from_text`; None if a change is not an Edit."""
        edits = [replace(edit, code=edit.code_with_imports, uses=()) for edit in self.changes if isinstance(edit, Edit)]
        if len(edits) < len(self.changes):
            return None
        return [[tuple(vars(each).values()) for each in several] for several in (edits, self.present, self.fixed)]

    @classmethod
    def from_text(cls, text: Sequence[Sequence[Any]], title: str, severity: str, affects: Mapping[str, str]) -> Patch:
        """A patch with the same changes and evidence as the one whose `as_text` this is, without what else it says."""
        edits = tuple(Edit(*each) for each in text[0])
        present, fixed = (tuple(Source(*each) for each in several) for several in text[1:])
        return cls(title, Severity(severity), affects, edits, present=present, fixed=fixed)

    def claims(self, release: str) -> bool:
        """Whether `affects` includes this release of DeepSpeed."""
        return satisfies(self.affects.get("deepspeed", ""), release)


class BugPresent(Exception):
    """Raised by `reproduce` if and only if this very bug was seen; the message says what was seen."""


class CannotTell(Exception):
    """Raised by `reproduce` when this machine cannot show the bug, with the reason, e.g. "needs two GPUs"."""


def _check_target(target: str) -> None:
    module, colon, qualname = target.partition(":")
    if not (module and colon and qualname):
        raise ValueError(f"target {target!r} is not of the form 'package.module:qualified.name'")
