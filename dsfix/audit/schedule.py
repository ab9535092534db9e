"""The learning rates of a plan, step by step, by the formulas that DeepSpeed documents for its schedulers."""

from __future__ import annotations

from dsfix.audit.plan import Plan
from dsfix.audit.recipe import Unsupported


def rates(plan: Plan, initial: list[float]) -> list[list[float]]:
    """For each step the rate of each group. initial: those of the optimizer. Raises Unsupported."""
    scheduler = plan.config.get("scheduler")
    if not scheduler or not scheduler.get("type"):
        return [list(initial) for _ in range(plan.steps)]
    raise Unsupported(f"the audit knows no formula of the scheduler {scheduler['type']}")
