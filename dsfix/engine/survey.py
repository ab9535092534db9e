"""What the commands look at: the installed distributions, and a verdict for every patch."""

from __future__ import annotations

import sys

from ..cli.exits import NO_DEEPSPEED, Complaint
from ..cli.printing import output
from . import registry, verdict, versions
from .outcome import UnknownPatch
from .settings import Settings

SHOWN = ("deepspeed", "torch", "numpy", "python")


def distributions() -> dict[str, str | None]:
    """Version, "" where there is one without metadata, None where it is absent."""
    return {name: versions.installed(name) for name in (*SHOWN, *registry.plugin_distributions())}


def heading() -> str:
    """The versions in one line."""
    return versions.described(*SHOWN, *registry.plugin_distributions())


def require_deepspeed() -> None:
    """Raises Complaint where there is no DeepSpeed to look at."""
    version = versions.installed("deepspeed")
    if version is None:
        raise Complaint(f"DeepSpeed is not installed for {sys.executable}: nothing to patch", NO_DEEPSPEED)
    if not versions.importable("deepspeed"):
        raise Complaint(
            f"deepspeed {version} is registered as installed, but its package is missing or empty: reinstall it",
            NO_DEEPSPEED,
        )


def refused(complaint: Complaint, as_json: bool) -> int:
    """Prints the complaint as JSON and returns its exit status; raises it where JSON was not asked for."""
    if not as_json:
        raise complaint
    output.print_json({"error": str(complaint), "distributions": distributions(), "patches": []})
    return complaint.status


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
