"""After `deepspeed.initialize`: the placement report, handled according to DSFIX_PLACEMENT (warn, error, move, off)."""

from __future__ import annotations

from typing import Any

from .. import log
from ..outcome import shortened_list
from . import GuardError
from .initialize import Call
from .placement_report import PlacementReport, move_buffers, placement_report

SHOWN = 20
"""The number of tensors that a message names."""


class PlacementError(GuardError):
    """Under DSFIX_PLACEMENT=error: a parameter or buffer is not on the expected device."""


def after(call: Call, result: tuple[Any, ...]) -> None:
    """Warns about misplaced tensors, moves the buffers, or raises PlacementError on each affected rank.

    Plain attributes alone do not stop a job: only the model knows whether its forward pass moves them.
    """
    mode = call.settings.placement
    if mode == "off":
        return
    engine = result[0]
    report = placement_report(engine)
    if mode == "error" and any(each.kind != "attribute" for each in report):
        raise PlacementError(f"{report.text(SHOWN)}\nDSFIX_PLACEMENT=warn lets the job continue")
    if mode == "move":
        moved, report = move_buffers(engine.module, report)
        moved = _for_this_rank(moved, engine)
        if moved:
            paths = shortened_list((f"{each.path} (from {each.device})" for each in moved), SHOWN)
            emit = log.warn if log.rank() else log.info_on_rank_zero
            emit(f"{_who()}moved {len(moved)} buffer{'s' if len(moved) > 1 else ''} to {moved.device}: {paths}")
    report = _for_this_rank(report, engine)
    if report:
        log.warn(f"{_who()}{report.text(SHOWN)}")


def _for_this_rank(report: PlacementReport, engine: Any) -> PlacementReport:
    """The part that this rank logs, so that a job logs everything once.

    Rank 0 logs everything, as does the first rank of each pipeline stage, which has its own modules. Rank 1 logs what
    rank 0 cannot see: a tensor placed explicitly on "cuda:0" is misplaced only on ranks other than 0.
    """
    rank = log.rank()
    if rank == 0 or (engine.pipeline_parallelism and engine.grid.get_data_parallel_id() == 0):
        return report
    by_number = [each for each in report if rank == 1 and each.device not in ("cpu", report.device)]
    return PlacementReport(report.device, tuple(by_number))


def _who() -> str:
    rank = log.rank()
    return f"rank {rank}: " if rank else ""
