"""After deepspeed.initialize: one line on which applied patches fix bugs that this config and model meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from .. import log, process, versions
from ..job import Job
from ..patch import Patch
from .initialize import Call

_EXPERTS = "MOELayer"
_PIPELINE = "PipelineModule"
_said = set[str]()


def after(call: Call, result: Any) -> None:
    """Logs the line on rank 0, once, from the patches' own conditions; nothing where the config is unknown."""
    engine = result[0] if isinstance(result, tuple) and result else None
    content = getattr(getattr(engine, "_config", None), "_param_dict", None)  # as DeepSpeed has read it
    applied = process.applied()
    if log.rank() != 0 or not isinstance(content, Mapping) or not applied:
        return
    job = _job(content, getattr(engine, "module", None), _decay(engine))
    met = [patch_id for patch_id, patch in applied.items() if _meets(patch, job)]
    if met:
        line = f"{len(met)} of {len(applied)} applied patches concern this config: {', '.join(met)}"
    else:
        line = f"none of {len(applied)} applied patches fixes a bug that this config alone is known to trigger"
    if line not in _said:  # a job may have many engines
        _said.add(line)
        log.inform(line)


def _meets(patch: Patch, job: Job) -> bool:
    try:
        return patch.config is not None and patch.config(job)
    except Exception:  # of an odd config: the line is not worth a warning
        return False


def _decay(engine: Any) -> float | None:
    """The largest weight decay of the optimizer's parameter groups; None where there is none to be seen."""
    groups = getattr(getattr(engine, "optimizer", None), "param_groups", None)
    try:
        return max((float(group.get("weight_decay", 0)) for group in groups or ()), default=None)
    except Exception:  # of an odd optimizer
        return None


def _job(content: Mapping[str, Any], module: Any, decay: float | None) -> Job:
    try:
        release = Version(versions.installed("deepspeed") or "0")
    except InvalidVersion:
        release = Version("0")
    if module is None:
        return Job(content, release, plain=True)
    return Job(
        content,
        release,
        plain=True,
        pipeline=any(each.__name__ == _PIPELINE for each in type(module).__mro__),
        experts=any(type(each).__name__ == _EXPERTS for each in module.modules()),
        frozen=any(not parameter.requires_grad for parameter in module.parameters()),
        decay=decay,
    )
