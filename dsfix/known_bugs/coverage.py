"""How dsfix handles each known bug on each release, from the patches' own declarations."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from ..catalogue.registry import Entry
from ..versions import satisfies
from .table import BY_NAME, Row, Table


class CoverageState(enum.Enum):
    """How dsfix handles one bug on one release."""

    PATCHED = "patched"
    IN_PART = "patched in part"
    OPTIONAL = "off by default"
    DIAGNOSED = "diagnosed"
    UNSAFE = "cannot be changed safely"
    OUTSIDE = "no part of training"
    UNREACHABLE = "unreachable"
    UNCONFIRMED = "unconfirmed"
    OPEN = "open"


NOT_COUNTED = (CoverageState.OUTSIDE, CoverageState.UNREACHABLE, CoverageState.UNCONFIRMED)
"""Not counted among the bugs of a release."""

_ROLES = ("fixed", "proposed fix", "reported")  # what a patch's link to a bug says; others: introduced, related
_FOLDERS = {
    **{"imports": "import", "tensor_parallel": "tensor-parallel"},
    **{"zero12": "zero-1/2", "zero3": "zero-3", "zeropp": "zero++"},
}
_BY_HAND = {
    **{"unsafe": CoverageState.UNSAFE, "outside": CoverageState.OUTSIDE, "unreachable": CoverageState.UNREACHABLE},
    **{"unconfirmed": CoverageState.UNCONFIRMED, "open": CoverageState.OPEN},
}


@dataclass(frozen=True)
class PatchCoverage:
    """A patch for a bug. needs: what else must be installed for it: "torch >=2.4"."""

    id: str
    claimed: str
    default: bool
    needs: str

    def claims(self, release: Version) -> bool:
        return satisfies(self.claimed, str(release))


@dataclass(frozen=True)
class Status:
    """How dsfix handles a bug on one release. by: "patch ID", "explain NAME"; why: a reason, or ""."""

    state: CoverageState
    by: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Bug:
    """A row with its patches; if the bug is known only from a patch, the row is generated from it."""

    row: Row
    covers: tuple[PatchCoverage, ...]

    def on(self, release: Version) -> Status:
        """How dsfix handles it on this release, which has the bug."""
        reasons = dict(self.row.states)
        why = next((reasons[kind] for kind in _BY_HAND if kind in reasons), "")
        named = tuple(f"{kind} {name}" for kind, name in self.row.states if kind in BY_NAME and kind != "patch")
        here = [cover for cover in self.covers if cover.claims(release)]
        if here:
            by = (*(f"patch {each.id}" for each in here), *named)
            needs = next((f"with {each.needs}" for each in here if each.needs), "")
            if not any(each.default for each in here):
                return Status(CoverageState.OPTIONAL, by, needs or why)
            if "part" in reasons:
                return Status(CoverageState.IN_PART, by, reasons["part"])
            return Status(CoverageState.PATCHED, by, needs)
        if named:
            return Status(CoverageState.DIAGNOSED, named, why)
        return Status(next((_BY_HAND[kind] for kind in _BY_HAND if kind in reasons), CoverageState.OPEN), (), why)


def bugs(table: Table, entries: Mapping[str, Entry]) -> tuple[Bug, ...]:
    """All known bugs, worst first: the table's and those known only from patches, including plug-ins'."""
    own = {name: entry for name, entry in entries.items() if entry.distribution == "dsfix"}
    known, used = [], set()
    for row in table.rows:
        ids = [name for name, entry in own.items() if _is_for(entry, row)]
        ids += [name for kind, name in row.states if kind == "patch" and name in own and name not in ids]
        known.append(Bug(row, tuple(_patch_coverage(own[each]) for each in ids)))
        used |= set(ids)
    known += [_made_of(chain, table) for chain in _chains(entries) if not used & {each.id for each in chain}]
    return tuple(sorted(known, key=lambda bug: bug.row.worst))


def _is_for(entry: Entry, row: Row) -> bool:
    """Whether the patch names the change that fixed the bug or, if the row names none, the report of the bug."""
    ended = row.last is not None and not row.key.rpartition("/")[0].endswith("issues")
    roles = _ROLES[:1] if ended else _ROLES
    return any(entry.patch.upstream.get(link, "").startswith(roles) for link in row.urls)


def area(entry: Entry) -> str:
    """The patch's folder, as named in the table."""
    return _FOLDERS.get(entry.area, entry.area)


def _patch_coverage(entry: Entry) -> PatchCoverage:
    needs = ", ".join(f"{name} {each}" for name, each in entry.patch.affects.items() if name != "deepspeed")
    return PatchCoverage(entry.id, entry.patch.affects.get("deepspeed", ""), entry.patch.default, needs)


def _chains(own: Mapping[str, Entry]) -> Iterator[list[Entry]]:
    """The patches, grouped with those that they continue: one bug in code that has changed."""
    before: dict[str, list[str]] = {}
    for name, entry in own.items():
        if entry.patch.continued_by in own:
            before.setdefault(str(entry.patch.continued_by), []).append(name)

    def chain(name: str) -> list[Entry]:
        return [own[name], *(each for earlier in before.get(name, ()) for each in chain(earlier))]

    for name, entry in own.items():
        if entry.patch.continued_by not in own:
            yield chain(name)


def _made_of(chain: Sequence[Entry], table: Table) -> Bug:
    covers = tuple(_patch_coverage(each) for each in chain)
    claimed = [release for release in table.releases if any(cover.claims(release) for cover in covers)]
    patch = chain[0].patch
    ended = claimed and claimed[-1] != table.releases[-1]
    row = Row(
        key=f"patch/{chain[0].id}",
        first=claimed[0] if claimed else table.releases[0],
        last=claimed[-1] if ended else None,
        about=False,
        severity=patch.severity.value,
        weight=3,
        area=area(chain[0]),
        bug=patch.title,
        states=(),
        links=tuple(link for role in _ROLES for link, shown in patch.upstream.items() if shown.startswith(role)),
    )
    return Bug(row, covers)
