"""Finds where DeepSpeed's record differs from plain PyTorch by more than rounding. Importing this imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from dsfix.audit import bounds
from dsfix.audit import model as models
from dsfix.audit.agreement import Difference
from dsfix.audit.pieces import Record, Step
from dsfix.audit.plan import Plan
from dsfix.audit.reference import Gradients, Reference


@dataclass
class Findings:
    """differences: in order of appearance, each kind once per phase; comparisons: numbers and tensors."""

    differences: list[Difference] = field(default_factory=list)
    comparisons: int = 0
    not_compared: dict[str, str] = field(default_factory=dict)


class Comparison:
    """Compares the steps of one phase, each starting from DeepSpeed's own state before it."""

    def __init__(self, reference: Reference, phase: str, findings: Findings, made: int = 0) -> None:
        """made: steps before the first that were not skipped."""
        self._reference, self._phase, self._found, self._made = reference, phase, findings, made
        plan = reference.plan
        self._eps = max(torch.finfo(reference.dtype).eps, bounds.EPS32)
        self._sent = max(self._eps, _eps(plan.config.get("communication_data_type")))

    def start(self, start: Step) -> None:
        expected = self._reference.start
        self._tensors("initial parameters", 0, start.parameters, expected, dict.fromkeys(expected, 0.0))
        self._tensors("initial weights", 0, start.weights, expected, dict.fromkeys(expected, 0.0))
        counted = {name: state["step"] for name, state in start.state.items() if "step" in state}
        self._tensors(
            "initial state step", 0, counted, {name: torch.zeros(()) for name in counted}, dict.fromkeys(counted, 0.0)
        )
        self._torn(start, 0)

    def loaded(self, saved: Step, start: Step, number: int) -> bool:
        """Compares the state after a load, before step number `number`, with what was saved, bit for bit.

        Returns whether the steps after it can be compared: not if weights were nan when they were saved.
        """
        self._made = number - saved.counters["skipped_steps"]
        for what in ("parameters", "weights"):
            expected = getattr(saved, what)
            self._tensors(what, number, getattr(start, what), expected, dict.fromkeys(expected, 0.0))
        for key in sorted({key for state in saved.state.values() for key in state}):
            expected = _of_key(saved, key)
            got = _of_key(start, key)
            self._tensors(f"state {key}", number, got, expected, dict.fromkeys(expected, 0.0), known=True)
        if saved.scale is not None:
            self._number("loss scale", number, start.scale or 0.0, saved.scale, 0.0)
        for name, count in saved.counters.items():
            self._number(name, number, start.counters[name], count, 0.0)
        return not any(tensor.isnan().any() for tensor in (*saved.parameters.values(), *saved.weights.values()))

    def exported(self, weights: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], number: int) -> None:
        """Compares an export before step number `number`: all of `weights` by the model's names, including tied ones.

        weights: as DeepSpeed held them then. Buffers have their initial values, in the model's dtype or the engine's.
        """
        model = models.build(self._reference.plan)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        expected: dict[str, torch.Tensor] = dict(model.state_dict())
        eps = torch.finfo(self._reference.dtype).eps
        limits = {
            name: eps * float(value.norm()) if value.is_floating_point() else 0.0 for name, value in expected.items()
        }
        for name, parameter in model.named_parameters(remove_duplicate=False):
            expected[name], limits[name] = weights[names[id(parameter)]], 0.0
        self._tensors("parameters", number, tensors, expected, limits)
        if extra := tuple(sorted(tensors.keys() - expected.keys())):
            detail = "the model has no such tensor"
            self._add(Difference(self._phase, "parameters", number, extra, 0.0, 0.0, 1.0, 0.0, detail))

    def steps(self, before: Step, steps: Iterable[Step], first: int = 0) -> None:
        for number, step in enumerate(steps, first):
            if not self._step(before, step, number):
                return
            before = step

    def _step(self, before: Step, step: Step, number: int) -> bool:
        """Compares one step. Returns whether the steps after it can be compared."""
        reference = self._reference
        if not self._whole(before, number):
            return False
        truth = reference.gradients(before.weights, number, before.scale or 1.0)
        self._number("loss", number, step.loss, truth.loss, bounds.loss(truth.loss, truth.loss_spread, self._eps))
        limits = {n: bounds.gradient(spread, self._sent, self._eps, truth.norm) for n, spread in truth.spread.items()}
        self._numbers("learning rates", number, step.learning_rates, reference.rates[self._made])
        self._skipped(before, step, truth, number)
        self._torn(step, number)
        if step.skipped:
            return True
        if not math.isfinite(truth.largest):
            self._found.not_compared[f"{self._phase} from step {number}"] = (
                "not skipped although its gradients are not finite"
            )
            return False
        self._made += 1
        self._gradients(step, truth, limits, number)
        self._update(before, step, truth, number)
        return True

    def _gradients(self, step: Step, truth: Gradients, limits: Mapping[str, float], number: int) -> None:
        """Compares the norm and the clipped gradients. limits: before clipping."""
        norm_limit = bounds.norm(list(limits.values()))
        if step.norm is None:
            self._found.not_compared["norm"] = "engine.get_global_grad_norm() returns None"
        else:
            self._number("norm", number, step.norm, truth.norm, norm_limit)
        relative = norm_limit / truth.norm if truth.norm else 0.0
        clip_error = relative if truth.factor < 1.0 else 0.0
        self._tensors(
            "gradients",
            number,
            step.gradients,
            truth.clipped,
            {
                name: limits[name] * truth.factor + clip_error * float(truth.clipped[name].norm())
                for name in truth.clipped
            },
        )

    def _update(self, before: Step, step: Step, truth: Gradients, number: int) -> None:
        """Compares parameters, optimizer state and weights with an update by the gradients of this step."""
        reference = self._reference
        gradients = {n: g for n, g in step.gradients.items() if not g.isnan().any()}
        clipped_gradients = {name: gradients.get(name, truth.clipped[name]) for name in reference.trained}
        update = reference.update(before.parameters, before.state, clipped_gradients, step.learning_rates)
        expected = {name: before.parameters[name].double() for name in reference.start}
        margins = reference.margins(before.parameters, before.state, clipped_gradients, step.learning_rates)
        changed = {name: (new - expected[name]).norm() for name, new in update.parameters.items()}
        expected.update(update.parameters)
        self._tensors(
            "parameters",
            number,
            step.parameters,
            expected,
            {
                name: bounds.close(float(p.norm()), float(changed.get(name, 0.0))) + margins.get(name, 0.0)
                for name, p in expected.items()
            },
        )
        for key in sorted({key for state in update.state.values() for key in state}):
            values = {name: state[key] for name, state in update.state.items()}
            self._tensors(
                f"state {key}",
                number,
                {name: state[key] for name, state in step.state.items() if key in state},
                values,
                {
                    name: bounds.STATE * self._scale(key, name, value, clipped_gradients)
                    for name, value in values.items()
                },
            )
        rounded = {name: p.to(reference.dtype) for name, p in step.parameters.items()}
        self._tensors("weights", number, step.weights, rounded, dict.fromkeys(rounded, 0.0))

    @staticmethod
    def _scale(key: str, name: str, value: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> float:
        if key == "step":
            return 0.0
        gradient = gradients[name].double()
        return float(value.norm()) + float((gradient if key != "exp_avg_sq" else gradient.square()).norm())

    def _whole(self, step: Step, number: int) -> bool:
        tensors_by_name = {name: (step.parameters.get(name), step.weights.get(name)) for name in self._reference.start}
        missing = [name for name, pair in tensors_by_name.items() if any(tensor is None for tensor in pair)]
        torn = [name for name, pair in tensors_by_name.items() if any(t is not None and t.isnan().any() for t in pair)]
        if missing or torn:
            detail = f"the ranks do not hold all of {', '.join((missing or torn)[:3])} before this step"
            self._add(Difference(self._phase, "parameters", number, tuple(missing or torn), 0, 0, 1, 0, detail))
        return not (missing or torn)

    def _skipped(self, before: Step, step: Step, truth: Gradients, number: int) -> None:
        """Compares whether the step is skipped, and the loss scale."""
        plan = self._reference.plan
        finite = math.isfinite(truth.largest)
        if plan.precision == "fp16":
            # in between it depends on the order of the reduction
            certain = not finite or truth.largest < torch.finfo(torch.float16).max / 2
            expected = not finite
        else:
            section = plan.config.get("bf16") or plan.config.get("bfloat16") or {}
            expected = not finite and bool(section.get("check_grad_overflow"))
            certain = finite or expected  # some optimizers skip the step without this option
        if certain:
            self._number("skipped", number, float(step.skipped), float(expected), 0.0)
        if before.scale is None or step.scale is None or plan.precision != "fp16":
            return
        options = plan.config["fp16"]
        low = max(before.scale / 2, float(options.get("min_loss_scale", 1)))
        allowed = (before.scale, low) if step.skipped else (before.scale, 2 * before.scale)
        if options.get("loss_scale", 0):
            allowed = (before.scale, before.scale)
        self._found.comparisons += 1
        if step.scale not in allowed:
            wanted_scale = allowed[1]
            off = abs(step.scale / wanted_scale - 1.0)
            self._add(Difference(self._phase, "loss scale", number, (), step.scale, wanted_scale, off, 0.0))

    def _torn(self, step: Step, number: int) -> None:
        for kind, names in step.torn.items():
            self._add(Difference(self._phase, kind, number, tuple(names), 0.0, 0.0, 1.0, 0.0, "the ranks differ"))

    def _number(self, what: str, number: int, got: float, wanted: float, limit: float) -> None:
        self._found.comparisons += 1
        if not math.isfinite(wanted) and not math.isfinite(got):
            return
        off = abs(got - wanted)
        if not off <= limit:
            scale = abs(wanted) or 1.0
            self._add(Difference(self._phase, what, number, (), got, wanted, off / scale, limit / scale))

    def _numbers(self, what: str, number: int, got: list[float], wanted: list[float]) -> None:
        if len(got) != len(wanted):
            detail = f"{len(got)} groups, expected {len(wanted)}"
            self._add(Difference(self._phase, what, number, (), len(got), len(wanted), 1.0, 0.0, detail))
            return
        for one, other in zip(got, wanted):
            self._number(what, number, one, other, 1e-6 * abs(other))

    def _tensors(
        self,
        what: str,
        number: int,
        got: Mapping[str, torch.Tensor],
        wanted: Mapping[str, torch.Tensor],
        limits: Mapping[str, float],
        known: bool = False,
    ) -> None:
        """known: the quantity was accessible before, so that its absence is a difference."""
        if not got and wanted and not known:
            self._found.not_compared[what] = f"this DeepSpeed does not expose {what}"
            return
        off: list[tuple[float, str, float, float, float]] = []
        for name, true in wanted.items():
            self._found.comparisons += 1
            if name not in got:
                off.append((float("inf"), name, float("nan"), float(true.double().norm()), 0.0))
                continue
            distance = self._distance(what, got[name].double(), true.double().view_as(got[name]))
            if not distance <= limits[name]:
                size = float(true.double().norm())
                ratio = distance / size if size else float("inf")
                limit = limits[name] / size if size else 0.0
                off.append((ratio, name, float(got[name].double().norm()), size, limit))
        if off:
            off.sort(key=lambda each: (-each[0] if each[0] == each[0] else float("-inf"), each[1]))
            ratio, _, seen, size, limit = off[0]
            names = tuple(each[1] for each in off)
            self._add(Difference(self._phase, what, number, names, seen, size, ratio, limit))

    def _distance(self, what: str, got: torch.Tensor, wanted: torch.Tensor) -> float:
        """Returns the norm of the difference. Elements that are nan in both are reported as not compared."""
        nan = got.isnan() & wanted.isnan()
        if nan.any():
            self._found.not_compared[f"{self._phase}: {what}"] = "elements that are nan in both"
        return float((got - wanted).masked_fill(nan | (got == wanted), 0.0).norm())

    def _add(self, difference: Difference) -> None:
        if all((d.phase, d.what) != (difference.phase, difference.what) for d in self._found.differences):
            self._found.differences.append(difference)


def _of_key(step: Step, key: str) -> dict[str, torch.Tensor]:
    return {name: state[key] for name, state in step.state.items() if key in state}


def _eps(dtype: str | None) -> float:
    known = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp16": torch.float16, "half": torch.float16}
    return torch.finfo(known[dtype]).eps if dtype in known else 0.0


def compare(plan: Plan, record: Record) -> Findings:
    """Compares the record of DeepSpeed's training with plain PyTorch. Raises Unsupported."""
    findings = Findings(not_compared=dict(record.not_compared))
    reference = Reference(plan)
    if record.start is not None:
        comparison = Comparison(reference, "training", findings)
        comparison.start(record.start)
        comparison.steps(record.start, record.steps)
        if record.steps and all(step.skipped for step in record.steps):
            findings.not_compared["gradients"] = (
                f"all {len(record.steps)} steps were skipped: the loss scale is too large"
            )
    if len(record.steps) >= plan.half > 0:
        saved = record.steps[plan.half - 1]
        for phase, tensors in record.exports.items():
            held = saved.weights if phase == "16bit" else {**saved.weights, **saved.parameters}
            Comparison(reference, phase, findings).exported(held, tensors, plan.half)
        for phase, start in record.loaded.items():
            comparison = Comparison(reference, phase, findings)
            if comparison.loaded(saved, start, plan.half):
                comparison.steps(start, record.resumed[phase], plan.half)
    return findings
