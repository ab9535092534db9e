"""What the commands look at: the installed distributions, and a verdict for every patch."""

from __future__ import annotations

from . import versions
from .catalogue import registry
from .catalogue.registry import UnknownPatch
from .engine import verdict
from .settings import Settings

SHOWN = ("deepspeed", "torch", "numpy", "python")


def distributions() -> dict[str, str | None]:
    """Version, "" where there is one without metadata, None where it is absent."""
    return {name: versions.installed(name) for name in (*SHOWN, *registry.plugin_distributions())}


def heading() -> str:
    """The versions in one line."""
    return versions.described(*SHOWN, *registry.plugin_distributions())


def verdicts() -> dict[str, verdict.Verdict]:
    """id -> verdict of every patch, from version numbers and source text."""
    settings = Settings.read()
    return {entry.id: verdict.decide(entry, settings) for entry in registry.catalogue().values()}


def entry(patch_id: str) -> registry.Entry:
    """The patch of that id. Raises UnknownPatch, which names the nearest ids."""
    known = registry.catalogue()
    if patch_id not in known:
        raise UnknownPatch(patch_id, list(known))
    return known[patch_id]
