"""A config against the rules: what is to be known is collected here."""

from __future__ import annotations

import base64
import dataclasses
import functools
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Union

from packaging.version import InvalidVersion, Version

from ..doctor.memory import physical
from ..doctor.platform import wsl
from ..engine import registry, versions
from ..engine import verdict as judge
from ..engine.outcome import Outcome
from ..engine.settings import Settings
from ..rules import Finding, findings, fits, load
from . import accelerate, arguments, extract, keys
from .facts import AUTO, Facts
from .reading import Reading, Unreadable, from_text, read

Config = Union[str, "os.PathLike[str]", Mapping[str, Any], Any]
_DISTRIBUTIONS = ("torch", "transformers", "accelerate")


@dataclass(frozen=True)
class Checked:
    """The findings, worst first; the release they are for; what had to be assumed, in sentences; what was looked at."""

    findings: list[Finding]
    release: str
    assumed: list[str]
    installed: bool
    facts: Facts

    def states(self) -> dict[str, tuple[str, str]]:
        """Of each patch that a finding names: its state here, and why."""
        named = dict.fromkeys(patch_id for finding in self.findings for patch_id in finding.patches)
        entries = registry.catalogue()
        return {patch_id: self._state(entries[patch_id]) for patch_id in named if patch_id in entries}

    def _state(self, entry: registry.Entry) -> tuple[str, str]:
        if self.installed:
            verdict = judge.decide(entry, Settings.read())
            word = "applies here" if verdict.outcome is Outcome.PENDING else verdict.outcome.value
            return word, verdict.reason
        affected = fits(entry.patch.affects, _versions(self.release))
        claim = ", ".join(f"{name} {specifiers}" for name, specifiers in entry.patch.affects.items())
        return ("would apply" if affected else "not-affected"), f"for {claim}"


def check_config(
    config: Config,
    *,
    world_size: int | None = None,
    deepspeed: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    plain: bool = False,
) -> list[Finding]:
    """What `python -m dsfix check` finds in a DeepSpeed config, the worst first. Nothing of DeepSpeed is imported.

    Args:
        config: a path (JSON, hjson, accelerate's YAML), a dictionary, or an object that holds one in `config`.
        world_size: processes of the job.
        deepspeed: the release to check for; the installed one by default, the newest known where none is installed.
        model_args: the training around the config, by the names that `python -m dsfix check --help` lists.
        plain: nobody puts values in place of "auto" before deepspeed.initialize.

    Raises:
        ValueError: one sentence: the config cannot be read, or an argument is none.
    """
    given = arguments.checked(model_args or {})
    return check(config, world_size=world_size, deepspeed=deepspeed, given=given, plain=plain).findings


def check(
    config: Config,
    *,
    world_size: int | None = None,
    deepspeed: str | None = None,
    given: Mapping[str, arguments.Value] | None = None,
    plain: bool = False,
    overridden: Iterable[str] = (),
    in_job: bool = False,
) -> Checked:
    """The same with what was assumed.

    Args:
        given: as `arguments.checked` returns it.
        overridden: blocks of the config that do not count, for the script passes such an object itself.
        in_job: as in Facts.

    Raises:
        ValueError: one sentence.
    """
    if world_size is not None and world_size < 1:
        raise ValueError(f"a world size of {world_size} is none")
    reading, from_accelerate = _reading(config)
    counts = {key: value for key, value in reading.content.items() if key not in overridden}
    reading = dataclasses.replace(reading, content=counts)
    known, release, assumed, installed = _target(deepspeed)
    _require_deepspeed_key(reading, known)
    if from_accelerate is not None:
        world_size = world_size or from_accelerate.world_size
    facts = Facts(
        reading,
        known,
        _versions(release),
        plain=plain,
        world_size=world_size,
        arguments=given or {},
        accelerate=from_accelerate,
        in_job=in_job,
        pinned_limited=_is_wsl(),
        memory=_memory(),
    )
    if not plain and facts.has_auto:
        assumed.append('transformers or accelerate puts values in place of "auto" (--plain: nobody does)')
    if world_size is None and facts.get("train_batch_size") not in (None, AUTO):
        assumed.append("any number of processes (--world-size N)")
    found = findings(load(f"{__package__}.rules"), facts, facts.versions)
    return Checked(found, release, assumed, installed, facts)


def _reading(config: Config) -> tuple[Reading, accelerate.Accelerate | None]:
    held = config if isinstance(config, (str, os.PathLike, Mapping)) else getattr(config, "config", config)
    if isinstance(held, Mapping):
        return Reading(dict(held)), None
    if not isinstance(held, (str, os.PathLike)):
        raise Unreadable(f"a {type(held).__name__} is no config: give a path or a dictionary")
    path = os.fspath(held)
    if not os.path.exists(path):
        encoded = _base64(path)
        if encoded is not None:
            return encoded, None
    reading = read(path)
    if accelerate.is_accelerate(reading.content):
        return accelerate.resolve(path, reading.content)
    if path.endswith((".yaml", ".yml")):
        raise Unreadable(f"{path} is no config of accelerate, and DeepSpeed reads no YAML")
    return reading, None


def _require_deepspeed_key(reading: Reading, known: keys.Known) -> None:
    """Raises Unreadable for a file of some other program."""
    names, content = known.keys.names, reading.content
    if content and not any(name in known.keys.below or keys.nearest(name, names) for name in map(str, content)):
        raise Unreadable(f"no key of DeepSpeed's is in this: {', '.join(map(str, list(content)[:3]))}, …")


def _base64(text: str) -> Reading | None:
    """DeepSpeed takes the config itself, base64-encoded, in place of a path."""
    try:
        return from_text("the base64 text", base64.urlsafe_b64decode(text).decode("utf-8"))
    except ValueError:
        return None


def _target(wanted: str | None) -> tuple[keys.Known, str, list[str], bool]:
    """What the release reads; the release; what was assumed; whether it is the installed one."""
    here = versions.installed("deepspeed")
    if wanted is not None and wanted != here:
        try:
            version = Version(wanted)
        except InvalidVersion:
            raise ValueError(f"{wanted!r} is no version of DeepSpeed") from None
        return keys.of_release(version), str(version), _outside(version), False
    newest = keys.table()["releases"][1]
    if here is None:
        return keys.of_release(Version(newest)), newest, [f"deepspeed {newest}: none is installed (--deepspeed)"], False
    assumed = []
    try:
        version = Version(Version(here).base_version)
    except InvalidVersion:
        assumed.append(f"deepspeed {newest}: the installed one gives no version, its keys are read from its source")
        version = Version(newest)
    try:
        return _read_from(_package()), str(version), assumed, True
    except extract.Unreadable as error:
        assumed.append(f"the keys of deepspeed {version} from dsfix's table: {error}")
        return keys.of_release(version), str(version), assumed + _outside(version), True


def _outside(version: Version) -> list[str]:
    first, last = keys.table()["releases"]
    if Version(first) <= version <= Version(last):
        return []
    near = first if version < Version(first) else last
    return [f"the keys of deepspeed {near}: dsfix knows {first} to {last}"]


@functools.cache
def _read_from(package: Path) -> keys.Known:
    return extract.known(package)


def _package() -> Path:
    try:
        spec = find_spec("deepspeed")
    except (ImportError, ValueError) as error:
        raise extract.Unreadable(str(error)) from None
    if spec is None or spec.origin is None:
        raise extract.Unreadable("the package is missing or empty")
    return Path(spec.origin).parent


def _versions(release: str) -> dict[str, str | None]:
    return {"deepspeed": release, **{name: versions.installed(name) for name in _DISTRIBUTIONS}}


def _is_wsl() -> bool:
    return wsl(platform.uname().release) > 0


def _memory() -> float | None:
    """The machine's memory in GB."""
    total = physical()
    return None if total is None else total / 1e9
