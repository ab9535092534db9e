"""The environment variables, read once when dsfix is imported."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from .outcome import UnknownPatch, did_you_mean, shortened_list
from .patch import Severity

_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}
_PLACEMENT = ("warn", "error", "move", "off")
_DEVICE_MAP = ("error", "repair", "off")
_CHECK = ("off", "warn", "error")
_SEVERITIES = tuple(each.value for each in Severity)
_NAMES = (
    *("DSFIX_DISABLE", "DSFIX_ONLY", "DSFIX_ALSO", "DSFIX_SKIP", "DSFIX_SEVERITY", "DSFIX_STRICT", "DSFIX_REPORT"),
    *("DSFIX_LOG_LEVEL", "DSFIX_PLACEMENT", "DSFIX_DEVICE_MAP", "DSFIX_CHECK", "DSFIX_RANK_CHECK", "DSFIX_CACHE"),
)
_INTERNAL = re.compile("DSFIX_(?:LAB|TESTING)_")  # for processes that dsfix itself starts
_MAX_NAMED = 3  # unknown variables
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

HASHES_REPEAT = not sys.flags.ignore_environment and os.environ.get("PYTHONHASHSEED", "random") not in ("", "random")
"""Whether PYTHONHASHSEED fixes string hashes; read at import, because setting it later has no effect."""


def cache_directory() -> Path:
    """$DSFIX_CACHE, or dsfix in the user's cache directory. Raises RuntimeError if the user has no home directory."""
    if os.environ.get("DSFIX_CACHE"):
        return Path(os.environ["DSFIX_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsfix"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file atomically, creating its folder if necessary. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


class Settings(NamedTuple):
    """DSFIX_DISABLE, _ONLY, _ALSO, _SKIP, _SEVERITY, _STRICT, _REPORT and _LOG_LEVEL; for the guards DSFIX_PLACEMENT,
    _DEVICE_MAP, _CHECK and _RANK_CHECK.

    `complaints` holds one sentence for each value that could not be used.
    """

    disable: bool = False
    only: frozenset[str] | None = None
    also: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    severities: frozenset[str] | None = None
    strict: bool = False
    report: str | None = None
    log_level: int = logging.INFO
    placement: str = _PLACEMENT[0]
    device_map: str = _DEVICE_MAP[0]
    check: str = _CHECK[0]
    rank_check: bool = True
    complaints: tuple[str, ...] = ()

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> Settings:
        env = os.environ if env is None else env
        complaints: list[str] = []

        def flag(name: str, default: bool = False) -> bool:
            value = env.get(name, "").strip().lower()
            if value not in _YES | _NO | {""}:
                complaints.append(f"{name} must be 1 or 0, got {env[name]!r}: ignored")
            return value in _YES or (default and value not in _NO)

        def choice(name: str, choices: tuple[str, ...]) -> str:
            value = env.get(name, "").strip().lower() or choices[0]
            if value not in choices:
                complaints.append(f"{name}={env[name]!r} is not one of {', '.join(choices)}: using {choices[0]}")
                return choices[0]
            return value

        severities = _words(env.get("DSFIX_SEVERITY", "").lower())
        for unknown in sorted(severities - set(_SEVERITIES)):
            complaints.append(f"DSFIX_SEVERITY: unknown severity {unknown!r}; must be one of {', '.join(_SEVERITIES)}")
        level = env.get("DSFIX_LOG_LEVEL", "").strip().upper() or "INFO"
        if level not in _LEVELS:
            given = env["DSFIX_LOG_LEVEL"]
            complaints.append(f"DSFIX_LOG_LEVEL={given!r} is not one of {', '.join(_LEVELS)}: using INFO")
            level = "INFO"
        named = [each for each in sorted(env) if each.startswith("DSFIX_")]
        named = [each for each in named if each not in _NAMES and not _INTERNAL.match(each)]
        if named:
            hints = "".join(did_you_mean(each, _NAMES) for each in named[:_MAX_NAMED])
            complaints.append(
                f"unknown variable{'s' * (len(named) > 1)} {shortened_list(named, _MAX_NAMED)}: ignored{hints}"
            )
        report = env.get("DSFIX_REPORT", "").strip()
        only = _words(env.get("DSFIX_ONLY", ""))
        return cls(
            disable=flag("DSFIX_DISABLE"),
            only=only or None,
            also=_words(env.get("DSFIX_ALSO", "")),
            skip=_words(env.get("DSFIX_SKIP", "")),
            severities=severities or None,
            strict=flag("DSFIX_STRICT"),
            report=os.path.abspath(os.path.expanduser(report)) if report else None,  # the job may change directory
            log_level=getattr(logging, level),
            placement=choice("DSFIX_PLACEMENT", _PLACEMENT),
            device_map=choice("DSFIX_DEVICE_MAP", _DEVICE_MAP),
            check=choice("DSFIX_CHECK", _CHECK),
            rank_check=flag("DSFIX_RANK_CHECK", default=True),
            complaints=tuple(complaints),
        )

    def complaints_about(self, known: Collection[str]) -> list[str]:
        """One sentence for each value that could not be used, including unknown ids."""
        named = {"DSFIX_SKIP": self.skip, "DSFIX_ONLY": self.only or frozenset(), "DSFIX_ALSO": self.also}
        unknown = ((variable, each) for variable, ids in named.items() for each in sorted(ids.difference(known)))
        return [*self.complaints, *(f"{variable}: {UnknownPatch(each, known)}" for variable, each in unknown)]

    def disabled(self, patch_id: str, default: bool, severity: str) -> str | None:
        """Why this patch is switched off, or None."""
        if self.disable:
            return "DSFIX_DISABLE is set"
        if patch_id in self.skip:
            return "named in DSFIX_SKIP"
        if self.only is not None and patch_id not in self.only:
            return "not named in DSFIX_ONLY"
        if self.severities is not None and severity not in self.severities:
            return f"its severity, {severity}, is not named in DSFIX_SEVERITY"
        if not default and self.only is None and patch_id not in self.also:
            return f"off by default; DSFIX_ALSO={patch_id} enables it"
        return None


def _words(value: str) -> frozenset[str]:
    return frozenset(value.replace(",", " ").split())
