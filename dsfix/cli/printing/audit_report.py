"""The result of an audit as text and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...audit.agreement import AuditVerdict, Difference
from ...audit.plan import Plan
from ...audit.resolve import ResolvedConfig
from ...audit.search import SearchResult
from ...catalogue import registry
from ...outcome import shortened_list
from .output import wrapped

_NAMES, _DIFFERENCES = 3, 8  # shown in the text; the JSON has all
_PHASES = {
    "training": "",
    "resume": "after save_checkpoint and load_checkpoint: ",
    "universal": "after loading the universal checkpoint: ",
    "zero_to_fp32": "exported by zero_to_fp32: ",
    "16bit": "saved by save_16bit_model: ",
}
_WHAT = {
    "loss": "the loss",
    "norm": "the gradient norm that DeepSpeed reports",
    "gradients": "the gradients passed to the optimizer",
    "parameters": "the parameters",
    "weights": "the model's weights",
    "learning rates": "the learning rates",
    "skipped": "whether the step is skipped",
    "loss scale": "the loss scale",
    "initial parameters": "the parameters before the first step",
    "initial weights": "the model's weights before the first step",
    # what should be equal on all ranks
    "scale": "the loss scale",
    "learning_rates": "the learning rates",
    "counters": "the step counters",
}


@dataclass
class Audit:
    """One run of the command. without: the verdict without dsfix; None if no patch applies, or not available yet.

    found: None if there was no search. interrupted: the user stopped it early.
    """

    file: str
    resolved: ResolvedConfig
    with_dsfix: AuditVerdict | None = None
    without: AuditVerdict | None = None
    found: SearchResult | None = None
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def agrees(self) -> bool:
        return self.with_dsfix is not None and self.with_dsfix.agrees


def text(audit: Audit) -> Iterator[str]:
    verdict = audit.with_dsfix
    if verdict is None:
        yield "Interrupted before anything was compared."
        return
    versions = ", ".join(f"{name} {version}" for name, version in verdict.versions.items())
    yield f"{audit.file}: {versions or 'no rank reported its versions'}"
    yield f"{described(audit.resolved.plan)}; {verdict.device or 'no device'}, {audit.seconds:.0f} s"
    yield ""
    applied = len(verdict.patches)
    heading = f"With dsfix ({applied} patch{'es' * (applied != 1)} applied)" if applied else "No patch applies here"
    yield from _verdict(heading, verdict)
    if audit.without is not None:
        yield from _verdict("Without dsfix", audit.without)
    yield from _fixes(audit)
    if audit.interrupted:
        yield "Interrupted: these are the results so far."
    for heading, sentences in (
        ("Assumed and changed", audit.resolved.notes),
        ("Not compared", [f"{what}: {why}" for what, why in verdict.not_compared.items()]),
    ):
        if sentences:
            yield ""
            yield f"{heading}:"
            for sentence in sentences:
                yield from wrapped(f"- {sentence}", "  ", "    ")


def described(plan: Plan) -> str:
    config = plan.config
    zero: Mapping[str, Any] = config.get("zero_optimization", {})
    parts = [f"ZeRO-{plan.stage}" if plan.stage else "no ZeRO", plan.precision]
    parts += [
        f"{part.replace('_', ' ')} {zero[part]['device']}"
        for part in ("offload_optimizer", "offload_param")
        if zero.get(part, {}).get("device", "none") != "none"
    ]
    parts.append(f"accumulation {plan.accumulation}")
    parts.append(f"clipping {config['gradient_clipping']:g}" if config.get("gradient_clipping") else "no clipping")
    parts.append(f"torch.optim.{plan.optimizer}" if plan.optimizer else str(config.get("optimizer", {}).get("type")))
    parts += [config["scheduler"]["type"]] if config.get("scheduler", {}).get("type") else []
    parts += ["zero.Init"] * plan.zero_init + ["LoRA"] * plan.lora
    parts += [f"{plan.checkpointing} checkpointing"] if plan.checkpointing != "none" else []
    ranks = f"{plan.ranks} rank{'s' * (plan.ranks > 1)}"
    schedule = f"; schedule {plan.schedule}" if plan.schedule else ""
    return f"{', '.join(parts)}; {plan.steps} steps on {ranks}{schedule}"


def in_short(verdict: AuditVerdict) -> str:
    if verdict.failed:
        return verdict.failed
    if not verdict.differences:
        return f"agrees, {verdict.seconds:.1f} s"
    first = verdict.differences[0]
    return f"differs: {_PHASES.get(first.phase, first.phase + ': ')}{_subject(first)}, {verdict.seconds:.1f} s"


def _verdict(heading: str, verdict: AuditVerdict) -> Iterator[str]:
    if verdict.failed:
        yield from wrapped(f"{heading}: nothing compared: {verdict.failed}")
    elif not verdict.differences:
        yield f"{heading}: agrees with PyTorch within rounding ({verdict.comparisons} comparisons)"
    else:
        yield f"{heading}: differs from PyTorch ({verdict.comparisons} comparisons):"
        for difference in verdict.differences[:_DIFFERENCES]:
            yield from wrapped(f"- {sentence(difference)}", "  ", "    ")
        more = len(verdict.differences) - _DIFFERENCES
        if more > 0:
            yield f"  and {more} more (--json)"


def sentence(difference: Difference) -> str:
    """Returns a difference in words; steps are counted from 1."""
    phase = _PHASES.get(difference.phase, f"{difference.phase}: ")
    where = f"step {difference.step + 1}"
    if difference.what == "error":
        return f"{phase}{where} fails with {difference.detail}"
    of = f" of {shortened_list(difference.names, _NAMES)}" if difference.names else ""
    return f"{phase}from {where} on, {_subject(difference)}{of}: {difference.detail or _amount(difference)}"


def _subject(difference: Difference) -> str:
    if difference.what == "error":
        return "an error"
    if difference.what.startswith("state "):
        return f"the optimizer's {difference.what.partition(' ')[2]}"
    return _WHAT.get(difference.what, difference.what)


def _amount(difference: Difference) -> str:
    """Returns the size of the difference; for a tensor, of its norm."""
    got, wanted = difference.got, difference.wanted
    if difference.what == "skipped":
        return "skipped, but should not be" if got else "not skipped, but should be"
    explained = f", rounding explains {difference.bound:.1g}" if difference.bound else ""
    if not difference.names:
        off = f", off by {difference.off:.2g}" if math.isfinite(difference.off) else ""
        return f"{got:.6g}, PyTorch: {wanted:.6g}{off}{explained}"
    if not math.isfinite(got):
        return "nan or inf, but finite in PyTorch" if math.isfinite(wanted) else "nan or inf"
    off = f"relative difference {difference.off:.2g}{explained}; " if math.isfinite(difference.off) else ""
    return f"{off}norm {got:.4g}, PyTorch: {wanted:.4g}"


def _fixes(audit: Audit) -> Iterator[str]:
    verdict, without, search_result = audit.with_dsfix, audit.without, audit.found
    assert verdict is not None
    if without is None or without.agrees:
        if without is not None and not verdict.agrees:
            only = "This happens only with dsfix: a patch is wrong. Please report it; DSFIX_SKIP=ID disables a patch."
            yield from wrapped(only)
        return
    if search_result is not None and search_result.fixes:
        partly = "Fixed" if verdict.agrees else "Partly fixed"
        yield f"{partly} by dsfix, with `import dsfix` on the first line of the script:"
        for fix in search_result.fixes:
            entry = registry.catalogue().get(fix.patch)
            yield from wrapped(f"- {fix.patch}{f': {entry.patch.title}' if entry is not None else ''}", "  ", "    ")
    elif search_result is not None and search_result.candidates:
        yield from wrapped(
            f"Fixed by dsfix, by one or more of {', '.join(search_result.candidates)}; the search ran out of time."
        )
    elif verdict.agrees:
        yield "Fixed by dsfix: `import dsfix` on the first line of the script."
    else:
        yield "No dsfix patch fixes it."


def as_json(audit: Audit) -> dict[str, Any]:
    search_result = audit.found
    return {
        "file": audit.file,
        "agrees": audit.agrees,
        "interrupted": audit.interrupted,
        "seconds": round(audit.seconds, 1),
        "assumed": list(audit.resolved.notes),
        "plan": dataclasses.asdict(audit.resolved.plan),
        "with_dsfix": _verdict_json(audit.with_dsfix),
        "without_dsfix": _verdict_json(audit.without),
        "search": search_result
        and {
            "complete": search_result.complete,
            "trials": search_result.trials,
            "fixes": [{"patch": fix.patch, "without_it": _verdict_json(fix.seen)} for fix in search_result.fixes],
            "candidates": list(search_result.candidates),
        },
    }


def _verdict_json(verdict: AuditVerdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {**_finite(dataclasses.asdict(verdict)), "agrees": verdict.agrees}


def _finite(value: Any) -> Any:
    """Returns the value with nan and inf as strings, which JSON requires."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
