"""What the search of the site looks at: a script that assigns it, so that it can be loaded from a folder, too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dsfix.catalogue.registry import Entry
from dsfix.cli.exits import CommandError
from dsfix.cli.printing.known_bugs import bug_name
from dsfix.explain import literals
from dsfix.explain.signature import Role, Signature
from dsfix.known_bugs import coverage, search
from dsfix.known_bugs.coverage import Bug
from dsfix.known_bugs.table import Table
from dsfix.versions import satisfies
from matrix.site import bugs, known

LARGEST = 2_000_000  # bytes
_RANKS = {Role.CAUSE: 0, Role.GENERAL: 1, Role.POSSIBLE: 2}
# what JavaScript does not know or means differently: flags, names, possessive repeats, ends of the text
_PYTHON_ONLY = re.compile(r"\(\?(?![:=!]|<[=!])|[*+?}]\+|(?<![\w[])\^|\$")


def written(pages: Iterable[Mapping[str, Any]], releases: Sequence[str], torch: Sequence[str]) -> str:
    """The script. Raises CommandError if it is too large."""
    parts = {"releases": releases, "torch": torch, "pages": list(pages), "same": search.SYNONYMS}
    payload = json.dumps({**parts, "nothing": sorted(search.STOP_WORDS)}, separators=(",", ":"))
    script = f"window.dsfixKnown = {payload};\n"
    if len(script.encode()) > LARGEST:
        raise CommandError(f"the search index has {len(script.encode())} bytes, more than {LARGEST}")
    return script


def of_patch(
    entry: Entry, seen: str, own: Iterable[Bug], named_by: Iterable[Signature], all_: Table, torch: Sequence[str]
) -> dict[str, Any]:
    """A patch's page. seen: the error of a real run; own: its rows; named_by: the signatures that name it."""
    patch, signatures = entry.patch, list(named_by)
    rows = " ".join(bug.row.bug for bug in own)
    links = [*patch.upstream, *(link for bug in own for link in bug.row.urls)]
    return {
        **_page(f"bugs/{entry.id}", patch.title, coverage.area(entry), patch.severity.value, entry.id),
        **_where(bugs.claimed(entry, map(str, all_.releases)), bugs.torches(patch.affects, torch), all_, torch),
        "keys": f"{entry.id} {rows} {_numbers(links)}",
        "words": _words(
            entry.docstring, bugs.config(entry), patch.symptom, seen, *(signature.title for signature in signatures)
        ),
        "patterns": [pattern(each) for each in (patch.symptom, *(one.pattern for one in signatures)) if each],
    }


def of_row(bug: Bug, all_: Table, torch: Sequence[str]) -> dict[str, Any]:
    row = bug.row
    page = known.answer(bug, all_).state.value
    return {
        **_page(f"bugs/{known.name(bug)}", row.bug, row.area, row.severity, f"{bug_name(bug)}, {page}"),
        **_where(known.affected(bug, all_), torch, all_, torch),
        "keys": _numbers(row.urls),
        "words": _words(*(each for state in row.states for each in state)),
    }


def of_signature(one: Signature, all_: Table, torch: Sequence[str]) -> dict[str, Any]:
    claimed = one.affects.get("deepspeed", "")
    return {
        **_page(f"messages/{one.id}", one.title, "", "", "a message and what helps"),
        **_where(
            [str(release) for release in all_.releases if satisfies(claimed, str(release))],
            bugs.torches(one.affects, torch),
            all_,
            torch,
        ),
        "keys": f"{one.id} {_numbers(one.evidence)}",
        "words": _words(one.what, one.remedy, *one.matches),
        "patterns": [pattern(one.pattern)] if one.pattern else [],
        "rank": 1 if one.patches else _RANKS.get(one.role, 3),
    }


def of_guide(name: str, markdown: str) -> Iterator[dict[str, Any]]:
    """The sections of a page that is written by hand. name: its path."""
    # MyST's: only the site's environment has it
    from mdit_py_plugins.anchors.index import slugify  # type: ignore[import-not-found,unused-ignore]

    shown = re.sub(r"^```[\s\S]*?^```$", "", markdown, flags=re.M)
    above, title, *parts = re.split(r"^#{1,3} (.+)$", shown, flags=re.M)
    for heading, words in zip([title, *parts[1::2]], [f"{above} {parts[0]}", *parts[2::2]]):
        section = "" if heading is title else f": {heading}"
        yield {
            "guide": True,
            "title": f"{title}{section}".replace("`", ""),
            "url": f"{name[:-3]}.html#{slugify(heading.replace('`', ''))}",
            "words": _words(words),
        }


def _page(address: str, title: str, area: str, severity: str, name: str) -> dict[str, Any]:
    return {"url": f"{address}.html", "title": title.replace("`", ""), "area": area, "severity": severity, "name": name}


def _where(here: Sequence[str], with_torch: Sequence[str], all_: Table, torch: Sequence[str]) -> dict[str, Any]:
    """Runs of releases, each from and to which one it is, and versions of torch; left out where it is all of them."""
    page: dict[str, Any] = {}
    if len(here) < len(all_.releases):
        places = [place for place, each in enumerate(all_.releases) if str(each) in here]
        begins = [each for each in places if each - 1 not in places]
        page["releases"] = list(zip(begins, (each for each in places if each + 1 not in places)))
    if len(with_torch) < len(torch):
        page["torch"] = list(with_torch)
    return page


def _numbers(links: Iterable[str]) -> str:
    return " ".join(link.rpartition("/")[2][:9] for link in links if "/" in link)


def _words(*texts: str) -> str:
    """Each word once, as it is written: the script splits "CamelCase" and "snake_case"."""
    return " ".join(dict.fromkeys(re.findall(r"\w+", " ".join(texts))))


def pattern(expression: str) -> dict[str, Any]:
    """The expression, and the strings one of which a matching text has. Raises CommandError if JavaScript differs."""
    if _PYTHON_ONLY.search(re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "x", expression)) or re.search(r"\\[AZ]", expression):
        raise CommandError(f"the site's search cannot look for {expression!r}, which only Python understands")
    return {"is": expression, "has": sorted(literals.trigger(literals.required(expression)))}
