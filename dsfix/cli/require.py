"""What a command cannot do without: DeepSpeed."""

from __future__ import annotations

import sys

from ..engine import survey, versions
from .exits import NO_DEEPSPEED, Complaint
from .printing import output


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
    output.print_json({"error": str(complaint), "distributions": survey.distributions(), "patches": []})
    return complaint.status
