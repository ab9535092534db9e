"""What `explain` says of a text that it does not recognise, as text and as JSON: by its words, and of its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...explain.closest.search import Possibility
from ...explain.fixes import fixes
from .rows import print_rows, ranges

BY_WORDS = "Possibilities only, by the words of the text. The message of the error, with its traceback, tells more."
BY_NAMES = "What is known of names in the text; it need not be the cause."
_LINKS = 1

_Versions = Sequence[Mapping[str, str]]


def show(heading: str, found: Sequence[Possibility], versions: _Versions) -> None:
    """versions: those that the text names, for its patches."""
    print(f"\n{heading}")
    for each in found:
        print(f"\n  {each.id}: {each.title}")
        print_rows(
            [
                ("words", ", ".join(each.words)),
                ("what", each.what),
                ("releases", ranges(each.affects)),
                *(("dsfix", fix.sentence()) for fix in fixes(each.patches, versions)),
                ("else" if each.patches else "remedy", each.remedy),
                *(("see", link) for link in each.evidence[:_LINKS]),
            ]
        )


def as_json(found: Sequence[Possibility], versions: _Versions) -> list[dict[str, Any]]:
    return [
        {
            "id": each.id,
            "title": each.title,
            "words": list(each.words),
            "what": each.what,
            "affects": [dict(ranges) for ranges in each.affects],
            "patches": [fix.as_json() for fix in fixes(each.patches, versions)],
            "remedy": each.remedy,
            "evidence": list(each.evidence),
        }
        for each in found
    ]
