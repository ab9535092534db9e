"""`list --deepspeed VERSION`: the patches for a release that need not be installed, by its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from ...catalogue.registry import Entry
from ...patch import Severity
from ...settings import Settings
from ...upstream.coverage import specifiers
from . import output


def of(release: Version, entries: Mapping[str, Entry]) -> list[Entry]:
    """The patches whose range has the release, worst first."""
    here = [each for each in entries.values() if specifiers(each.patch.affects.get("deepspeed", "")).contains(release)]
    return sorted(here, key=lambda each: (list(Severity).index(each.patch.severity), each.id))


def as_json(found: Sequence[Entry]) -> list[dict[str, Any]]:
    return [
        {
            "id": each.id,
            "title": each.patch.title,
            "severity": each.patch.severity.value,
            "affects": dict(each.patch.affects),
            "disabled": _disabled(each),
            "distribution": each.distribution,
        }
        for each in found
    ]


def show(found: Sequence[Entry]) -> None:
    rows = [((each.id, *_told(each)), "green" if not _disabled(each) else "yellow") for each in found]
    if rows:
        output.print_table(("patch", "there", "why"), rows)
    off = sum(_disabled(each) is not None for each in found)
    only = sum(bool(_needs(each)) for each in found)
    print(
        f"{len(found)} patches are for this release{f', {off} of them disabled' if off else ''}"
        f"{f'; {only} only with the torch or NumPy named' if only else ''}. The installed source decides in a job."
    )


def _told(entry: Entry) -> tuple[str, str]:
    why = _disabled(entry) or _needs(entry)
    title = f"{entry.patch.severity.value}: {entry.patch.title}"
    return ("disabled" if _disabled(entry) else "applies"), f"{title}\n{why}" if why else title


def _needs(entry: Entry) -> str:
    needs = [f"{name} {each}" for name, each in entry.patch.affects.items() if name != "deepspeed"]
    return f"only with {', '.join(needs)}" if needs else ""


def _disabled(entry: Entry) -> str | None:
    return Settings.read().disabled(entry.id, entry.patch.default, entry.patch.severity.value)
