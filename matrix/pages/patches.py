"""docs/patches.md, the page in git: one row for each patch."""

from __future__ import annotations

from collections.abc import Iterable

from dsfix.patch import Patch, Severity

from . import text
from .evidence import Evidence

_HEAD = """\
# The patches

Written by `python -m tox run -e pages` from `patches/` and `matrix/proofs/`; edit those.

{total} bugs have a patch. {newest} of them are in DeepSpeed {release}, the newest release, and {wrong} of these
{newest} give wrong results. `python -m dsfix show ID` explains a patch, `python -m dsfix list` shows which ones apply
to the installed DeepSpeed, and `python -m dsfix explain LOG` searches a log for their messages.

{reproduced}

`matrix/proofs/ID.txt` has what was seen. `python -m tox run -e site` builds a site, into `site/`: a page for each patch
with all that is known of it, the results of all other tests, and a search.

"""
_HEADS = ("patch", "severity", "what users see", "DeepSpeed", "only with", "fixed in")


def render(evidence: Evidence) -> str:
    """The page's Markdown."""
    affected = newest(evidence)
    head = _HEAD.format(
        total=len(evidence.entries),
        newest=len(affected),
        wrong=wrong(affected),
        release=evidence.releases[-1],
        reproduced=reproduced(evidence),
    )
    rows = []
    for entry in evidence.entries:
        patch = entry.patch
        releases = text.affected(patch, evidence.releases)
        ends = patch.fixed_in or (f"continued by `{patch.continued_by}`" if patch.continued_by else "")
        beside = text.escape(text.beside(patch))
        rows.append([f"`{entry.id}`", patch.severity.value, text.escape(patch.title), releases, beside, ends])
    return head + text.table(_HEADS, rows)


def newest(evidence: Evidence) -> list[Patch]:
    """The patches for bugs of the newest release."""
    return [entry.patch for entry in evidence.entries if entry.patch.claims(evidence.releases[-1])]


def wrong(patches: Iterable[Patch]) -> int:
    """How many are for wrong results."""
    return sum(each.severity is Severity.WRONG_RESULT for each in patches)


def reproduced(evidence: Evidence) -> str:
    """On how many cells of the first column the reproduction was run, in sentences."""
    ran, percent = evidence.ran(evidence.columns[0]), share(evidence)
    total = sum(len(columns[evidence.columns[0].name]) for columns in evidence.cells.values())
    return (
        f"Patches and releases make {total} pairs. On {len(ran)} of them ({percent} %), the releases that a patch\n"
        "claims and some next to them, the bug's reproduction was run without the patch and with it, on "
        f"{sum(cell.earlier is not None for cell in ran)} with an\nearlier version of the patch. "
        f"The other {total - len(ran)} ({100 - percent} %) are "
        "proven by source only: there the\npatch does not apply (`python -m tox run -e source`)."
    )


def share(evidence: Evidence) -> int:
    """Percent of the cells of the first column on which the reproduction was run."""
    column = evidence.columns[0]
    return round(
        100 * len(evidence.ran(column)) / sum(len(columns[column.name]) for columns in evidence.cells.values())
    )
