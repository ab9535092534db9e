"""What the commands examine: the installed distributions, and a verdict for every patch."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import replace

from . import versions
from .catalogue import registry
from .catalogue.registry import Entry
from .engine.cache import Cache
from .engine.verdict import Verdict, before_source, by_source
from .outcome import Outcome, UnknownPatch, error_text
from .settings import Settings

_HOME = "deepspeedai/deepspeed"
_REFERENCE = re.compile(
    r"(?:https?://github\.com/)?(?:([\w.-]+/[\w.-]+)(?:/(?:pull|issues|commit)/|#))([0-9a-f]+)(?:[/#?].*)?|#?(\d+)"
)
DISTRIBUTIONS = ("deepspeed", "torch", "numpy", "python")

_cache = functools.cache(Cache)  # read once for all patches


def distributions() -> dict[str, str | None]:
    """The versions: "" for a package without metadata, None for an absent one."""
    return {name: versions.installed(name) for name in (*DISTRIBUTIONS, *registry.plugin_distributions())}


def versions_line() -> str:
    """The versions in one line."""
    return versions.versions_text(*DISTRIBUTIONS, *registry.plugin_distributions())


def verdicts() -> dict[str, Verdict]:
    """id -> verdict of every patch, from version numbers and source text."""
    settings = Settings.read()
    return {entry.id: verdict_of(entry, settings) for entry in registry.catalogue().values()}


def verdict_if_named(entry: Entry) -> Verdict:
    """The verdict on a patch that the user named: one that is off by default counts as on."""
    return verdict_of(entry._replace(patch=replace(entry.patch, default=True)), Settings.read())


def verdict_of(entry: Entry, settings: Settings) -> Verdict:
    """The verdict before anything is imported: user's choice, version gate, source."""
    try:
        return before_source(entry.summary, settings, _cache()) or by_source(entry.patch, _cache())
    except Exception as error:  # one declaration that cannot be evaluated must not affect the others
        code = f" in `{error.text.strip()}`" if isinstance(error, SyntaxError) and error.text else ""
        return Verdict(Outcome.FAILED, f"{error_text(error)}{code}")


def find_entries(text: str) -> list[Entry]:
    """The patch with that id (case-insensitive), or those for an upstream issue, pull request or commit: 7948, #7948,
    URL. Raises UnknownPatch, which names the nearest ids."""
    link, known = reference(text), registry.catalogue()
    matching = [
        each
        for each in known.values()
        if each.id.lower() == text.lower() or (link and link in map(reference, each.patch.upstream))
    ]
    if not matching:
        raise UnknownPatch(text, list(known))
    return matching


def find_all_entries(texts: Iterable[str]) -> list[Entry]:
    """The `find_entries` of all of them, each once. Raises UnknownPatch."""
    return list({entry.id: entry for text in texts for entry in find_entries(text)}.values())


def reference(text: str) -> str:
    """ "deepspeedai/deepspeed/7948" for 7948, #7948, owner/name#7948 or a GitHub URL; "" for any other text."""
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        return ""
    return f"{match[1] or _HOME}/{match[2] or match[3]}".lower().replace("microsoft/deepspeed/", f"{_HOME}/")
