"""`list --job DIR`: the report files of a job's processes, merged into one table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..outcome import Outcome
from . import output
from .status import OK, TROUBLE, Complaint


def run(directory: Path, as_json: bool) -> int:
    """Prints which patch is in what state in how many processes; Complaint where there are no reports."""
    reports, unreadable = _read(directory)
    patches: dict[str, Counter[tuple[str, str]]] = {}
    for report in reports:
        for patch in report["patches"]:
            patches.setdefault(patch["id"], Counter())[(patch["outcome"], patch["reason"])] += 1
    merged: list[dict[str, Any]] = [
        {"id": patch_id, "outcome": outcome, "reason": reason, "processes": count}
        for patch_id, counted in sorted(patches.items())
        for (outcome, reason), count in counted.most_common()
    ]
    if as_json:
        output.print_json({"processes": len(reports), "unreadable": unreadable, "patches": merged})
    else:
        print(f"{len(reports)} processes; {_versions(reports)}")
        rows = [
            ((row["id"], row["outcome"], str(row["processes"]), row["reason"]), output.style(Outcome(row["outcome"])))
            for row in merged
        ]
        output.print_table(("patch", "state", "processes", "why"), rows)
        for name in unreadable:
            print(f"{name} is not a report of dsfix: left out")
    return TROUBLE if any(Outcome(row["outcome"]).trouble for row in merged) else OK


def _read(directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    if not directory.is_dir():
        raise Complaint(f"{directory} is not a directory")
    reports, unreadable = [], []
    for path in sorted(directory.glob("dsfix-*.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            _check(report)
            reports.append(report)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            unreadable.append(path.name)
    if not reports:
        raise Complaint(f"{directory} holds no report of dsfix: run the job with DSFIX_REPORT={directory}")
    return reports, unreadable


def _check(report: dict[str, Any]) -> None:
    """Raises ValueError, KeyError or TypeError for what dsfix has not written."""
    for patch in report["patches"]:
        Outcome(patch["outcome"])
        if not (isinstance(patch["id"], str) and isinstance(patch["reason"], str)):
            raise TypeError(patch)
    if not isinstance(report["distributions"], dict):
        raise TypeError(report)


def _versions(reports: list[dict[str, Any]]) -> str:
    counted = Counter(
        ", ".join(f"{name} {version}" for name, version in report["distributions"].items()) for report in reports
    )
    return "; ".join(f"{text} ({count})" if len(counted) > 1 else text for text, count in counted.most_common())
