"""Collects the facts about a config and checks it against the rules."""

from __future__ import annotations

import base64
import dataclasses
import functools
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from packaging.version import InvalidVersion, Version

from .. import survey, versions
from ..catalogue import registry
from ..doctor.memory import physical
from ..doctor.platform import wsl
from ..job import AUTO
from ..outcome import Outcome
from ..rules import Finding, all_in_range, findings, load
from ..settings import Settings
from . import accelerate, arguments, extract, keys
from .facts import Facts, is_inference, name_of
from .reading import Reading, Unreadable, from_text, read
from .rules.file import FOR_PLACEHOLDERS

Config = Union[str, "os.PathLike[str]", Mapping[str, Any], Any]
# the rules that hold for a config of deepspeed.init_inference, of which only the keys are known
FOR_INFERENCE = (
    *("duplicate_key", "rejected_key", "string_for_a_number", "fractional_integer", "not_finite"),
    *("template", "placeholder_in_text", "shards_not_kept_on_host", "autotp_of_meta_model", "experts_taken_for_ranks"),
)
_DISTRIBUTIONS = ("torch", "transformers", "accelerate")


@dataclass(frozen=True)
class CheckResult:
    """What was found, worst first.

    release: the DeepSpeed release that the config was checked for. assumed: what had to be assumed, as phrases.
    installed: whether that release is the installed one.
    """

    findings: list[Finding]
    release: str
    assumed: list[str]
    installed: bool
    facts: Facts

    def states(self) -> dict[str, tuple[str, str]]:
        """Returns the state of each patch that a finding names, and the reason."""
        named = dict.fromkeys(patch_id for finding in self.findings for patch_id in finding.patches)
        entries = registry.catalogue()
        return {patch_id: self._state(entries[patch_id]) for patch_id in named if patch_id in entries}

    def _state(self, entry: registry.Entry) -> tuple[str, str]:
        if self.installed:
            verdict = survey.verdict_of(entry, Settings.read())
            word = "applies here" if verdict.outcome is Outcome.PENDING else verdict.outcome.value
            return word, verdict.reason
        affected = all_in_range(entry.patch.affects, _versions(self.release))
        claim = ", ".join(f"{name} {specifiers}" for name, specifiers in entry.patch.affects.items())
        return ("would apply" if affected else "not-affected"), f"affects {claim}"


def check_config(
    config: Config,
    *,
    world_size: int | None = None,
    deepspeed: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    plain: bool = False,
) -> list[Finding]:
    """Returns what `python -m dsfix check` finds in a DeepSpeed config, worst first. DeepSpeed is not imported.

    Args:
        config: a path (JSON, hjson, accelerate's YAML), a dictionary, or an object with one in its attribute `config`.
        world_size: number of processes of the job.
        deepspeed: the release to check for; default: the installed one, or the newest known if none is installed.
        model_args: the training around the config; `python -m dsfix check --help` lists the names.
        plain: "auto" is not filled in before deepspeed.initialize.

    Raises:
        ValueError: the config cannot be read, or an argument is invalid; the message is one sentence.
    """
    parsed_arguments = arguments.checked(model_args or {})
    return check(config, world_size=world_size, deepspeed=deepspeed, given=parsed_arguments, plain=plain).findings


def check(
    config: Config,
    *,
    world_size: int | None = None,
    deepspeed: str | None = None,
    given: Mapping[str, arguments.Value] | None = None,
    plain: bool = False,
    overridden: Iterable[str] = (),
    in_job: bool = False,
) -> CheckResult:
    """Like `check_config`, and also returns what was assumed.

    given: model arguments as returned by `arguments.checked`. overridden: blocks of the config to ignore, because the
    script passes these objects itself. in_job: as in Facts.
    """
    if world_size is not None and world_size < 1:
        raise ValueError(f"world_size must be positive, got {world_size}")
    reading, from_accelerate = _reading(config)
    content = {key: value for key, value in reading.content.items() if key not in overridden}
    reading = dataclasses.replace(reading, content=content)
    known, release, assumed, installed = _target(deepspeed)
    inference = not plain and not in_job and from_accelerate is None and is_inference(content, known)
    if inference:
        known = dataclasses.replace(known, keys=known.inference)
    _require_deepspeed_key(reading, known)
    if from_accelerate is not None:
        world_size = world_size or from_accelerate.world_size
    total = physical()
    facts = Facts(
        reading,
        known,
        _versions(release),
        plain=plain,
        world_size=world_size,
        arguments=given or {},
        accelerate=from_accelerate,
        in_job=in_job,
        pinned_limited=wsl(platform.uname().release) > 0,
        memory=total / 1e9 if total is not None else None,
        inference=inference,
    )
    if from_accelerate is not None and from_accelerate.named is not None:
        assumed.append(f"{from_accelerate.file} in place of {from_accelerate.named}, which does not exist here")
    if inference:
        assumed.append(
            "this is a config for deepspeed.init_inference, so only its keys are checked (otherwise use --plain)"
        )
    elif not plain and facts.has_auto:
        assumed.append('transformers or accelerate fills in "auto" (otherwise use --plain)')
    if world_size is None and facts.get("train_batch_size") not in (None, AUTO):
        assumed.append("any number of processes (set it with --world-size)")
    rules = [rule for rule in load(f"{__package__}.rules") if rule.id in FOR_INFERENCE or not inference]
    unfilled = set(map(name_of, facts.unfilled))
    findings_at_keys = [
        finding
        for finding in findings(rules, facts, facts.versions)
        if finding.where not in unfilled or finding.rule in FOR_PLACEHOLDERS
    ]
    return CheckResult(findings_at_keys, release, assumed, installed, facts)


def _reading(config: Config) -> tuple[Reading, accelerate.Accelerate | None]:
    raw_config = config if isinstance(config, (str, os.PathLike, Mapping)) else getattr(config, "config", config)
    if isinstance(raw_config, Mapping):
        return Reading(dict(raw_config)), None
    if not isinstance(raw_config, (str, os.PathLike)):
        raise Unreadable(f"config must be a path or a dictionary, got {type(raw_config).__name__}")
    path = os.fspath(raw_config)
    if not path.strip():  # it would decode to an empty config
        raise Unreadable("the name of the config is empty")
    if not os.path.exists(path):
        encoded = _base64(path)
        if encoded is not None:
            return encoded, None
    reading = read(path)
    if accelerate.is_accelerate(reading.content):
        return accelerate.resolve(path, reading.content)
    if path.endswith((".yaml", ".yml")):
        raise Unreadable(f"{path} is not an accelerate config, and DeepSpeed does not read YAML")
    return reading, None


def _require_deepspeed_key(reading: Reading, known: keys.KnownKeys) -> None:
    """Raises Unreadable for a different program's file: it has no key of any release, and few that look like one."""
    known_names, names = known.keys.names, list(map(str, reading.content))
    exact = any(name in known.keys.below or keys.elsewhere((name,)) for name in names)
    near = sum(keys.nearest(name, known_names) is not None for name in names)
    if names and not exact and 2 * near < len(names):
        shown = ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])
        raise Unreadable(f"no key of DeepSpeed found, only {shown}")


def _base64(text: str) -> Reading | None:
    """Decodes a base64-encoded config, which DeepSpeed accepts instead of a path."""
    try:
        return from_text("the base64-encoded config", base64.urlsafe_b64decode(text).decode("utf-8"))
    except ValueError:
        return None


def _target(wanted: str | None) -> tuple[keys.KnownKeys, str, list[str], bool]:
    """Returns the keys that the release reads, the release, what was assumed, and whether it is the installed one."""
    here = versions.installed("deepspeed")
    if wanted is not None and wanted != here:
        try:
            version = Version(wanted)
        except InvalidVersion:
            raise ValueError(f"{wanted!r} is not a version of DeepSpeed") from None
        return keys.of_release(version), str(version), _outside(version), False
    newest = keys.table()["releases"][1]
    if here is None:
        assumed = [f"deepspeed {newest}, because none is installed (choose a release with --deepspeed)"]
        return keys.of_release(Version(newest)), newest, assumed, False
    assumed = []
    try:
        version = Version(Version(here).base_version)
    except InvalidVersion:
        assumed.append(f"deepspeed {newest}, because the installed one has no valid version (its keys are used)")
        version = Version(newest)
    try:
        return _read_from(versions.module_file("deepspeed")), str(version), assumed, True
    except extract.UnreadableSource as error:
        assumed.append(f"the keys of deepspeed {version} from dsfix's table: {error}")
        return keys.of_release(version), str(version), assumed + _outside(version), True


def _outside(version: Version) -> list[str]:
    first, last = keys.table()["releases"]
    if Version(first) <= version <= Version(last):
        return []
    near = first if version < Version(first) else last
    return [f"the keys of deepspeed {near}, because dsfix knows only {first} to {last}"]


@functools.cache
def _read_from(file: str | None) -> keys.KnownKeys:
    if file is None:
        raise extract.UnreadableSource("the package is missing or empty")
    return extract.extract_keys(Path(file).parent)


def _versions(release: str) -> dict[str, str | None]:
    return {"deepspeed": release, **{name: versions.installed(name) for name in _DISTRIBUTIONS}}
