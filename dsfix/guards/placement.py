"""After `deepspeed.initialize`: the placement report, as DSFIX_PLACEMENT says (warn, error, move or off)."""

from __future__ import annotations

from typing import Any

from ..engine import log
from . import GuardError
from .initialize import Call
from .placement_report import PlacementReport, move_buffers, placement_report

SHOWN = 20
"""So many tensors are named."""


class PlacementError(GuardError):
    """Under DSFIX_PLACEMENT=error: a parameter or a buffer is not where the engine expects it."""


def after(call: Call, result: tuple[Any, ...]) -> None:
    """Warns; or raises PlacementError on each rank that has a reason, or moves the buffers.

    Plain attributes alone stop no job: only the model knows whether its forward pass moves them.
    """
    mode = call.settings.placement
    if mode == "off":
        return
    engine = result[0]
    report = placement_report(engine)
    if mode == "error" and any(each.kind != "attribute" for each in report):
        raise PlacementError(f"{report.text(SHOWN)}\nDSFIX_PLACEMENT=warn lets the job go on")
    if mode == "move":
        moved, report = move_buffers(engine.module, report)
        moved = _for_this_rank(moved, engine)
        if moved:
            say = log.warn if log.rank() else log.inform
            say(f"{_who()}moved {len(moved)} buffer{'s' if len(moved) > 1 else ''} to {moved.device}: {_paths(moved)}")
    report = _for_this_rank(report, engine)
    if report:
        log.warn(f"{_who()}{report.text(SHOWN)}")


def _for_this_rank(report: PlacementReport, engine: Any) -> PlacementReport:
    """What this rank is to log, so that a job says each thing once.

    Rank 0 tells all, and so does the first rank of each stage of a pipeline, which has modules of its own. Rank 1 tells
    what rank 0 cannot see: what was put on an accelerator by number, "cuda:0", is astray from rank 1 on.
    """
    rank = log.rank()
    if rank == 0 or (engine.pipeline_parallelism and engine.grid.get_data_parallel_id() == 0):
        return report
    by_number = [each for each in report if rank == 1 and each.device not in ("cpu", report.device)]
    return PlacementReport(report.device, tuple(by_number))


def _who() -> str:
    rank = log.rank()
    return f"rank {rank}: " if rank else ""


def _paths(report: PlacementReport) -> str:
    more = len(report) - SHOWN
    paths = [f"{each.path} (from {each.device})" for each in report]
    return ", ".join(paths[:SHOWN]) + (f" and {more} more" if more > 0 else "")
