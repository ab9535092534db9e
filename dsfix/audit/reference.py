"""What a plan has to compute: plain PyTorch in one process and in float64. Importing this imports torch.

Every step starts from DeepSpeed's weights and state, which `Reference.gradients` and `Reference.update` take: rounding
then does not accumulate over steps and is not amplified by Adam, whose first update is the sign of the gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dsfix.audit import model as models
from dsfix.audit.bounds import EPS32, Spread
from dsfix.audit.learning_rates import rates
from dsfix.audit.plan import Plan
from dsfix.audit.recipe import recipe, script_groups

Tensors = Mapping[str, torch.Tensor]
States = Mapping[str, Mapping[str, torch.Tensor]]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Gradients:
    """Those of one global batch, in float64. clipped: by the global norm, with `factor`. spread: the rounding errors.

    largest: the sum over all micro-batches of their largest scaled element in the plan's precision; inf or nan if one
    of them overflows.
    """

    loss: float
    norm: float
    clipped: dict[str, torch.Tensor]
    factor: float
    spread: dict[str, Spread]
    loss_spread: float
    largest: float


@dataclass
class Update:
    """Parameters and optimizer state after a step, in float64."""

    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


class Reference:
    """A plan without open defaults (plan.complete), in plain PyTorch. Raises Unsupported."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.clip = plan, float(plan.config.get("gradient_clipping", 0.0))
        self.dtype = DTYPES[plan.precision]
        built = models.build(plan)
        self._exact = models.freeze(models.build(plan).to(self.dtype).double(), plan)
        self._rounded = models.build(plan).to(self.dtype)
        self.start = {name: p.detach().to(self.dtype).float() for name, p in built.named_parameters()}
        self.trained = [name for name, p in built.named_parameters() if p.requires_grad]
        self.recipe = recipe(plan)
        self.groups = self.recipe.groups(plan, script_groups(dict(built.named_parameters()), plan))
        self.rates = rates(plan, [group["lr"] for group in self.groups])

    def gradients(self, weights: Tensors, step: int, scale: float = 1.0) -> Gradients:
        """Returns the gradients of the global batch of `step` at `weights`, which are rounded to the model's dtype.

        scale: the loss scale in fp16.
        """
        exact, rounded = _load(self._exact, weights, self.dtype), _load(self._rounded, weights, self.dtype)
        batches = list(models.batches(self.plan, step))
        total = {name: torch.zeros_like(exact[name]) for name in self.trained}
        spread = {name: Spread() for name in self.trained}
        loss = loss_error = largest = 0.0
        for batch in batches:
            true_loss, true = self._one(self._exact, exact, batch)
            seen_loss, seen = self._one(self._rounded, rounded, batch, scale / self.plan.accumulation)
            largest += max(float(gradient.abs().max()) for gradient in seen.values()) * scale / self.plan.accumulation
            loss += true_loss / len(batches)
            loss_error += abs(seen_loss - true_loss) / len(batches)
            for name in self.trained:
                total[name] += true[name] / len(batches)
                spread[name].add(true[name], seen[name], len(batches))
        norm, factor, clipped = self._clipped(total)
        return Gradients(loss, norm, clipped, factor, spread, loss_error, largest)

    def _clipped(self, gradients: Tensors) -> tuple[float, float, dict[str, torch.Tensor]]:
        norm = float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())
        factor = min(1.0, self.clip / (norm + 1e-6)) if self.clip > 0.0 else 1.0
        return norm, factor, {name: gradient * factor for name, gradient in gradients.items()}

    def _one(
        self, model: Any, parameters: Tensors, batch: models.Batch, scale: float = 1.0
    ) -> tuple[float, dict[str, torch.Tensor]]:
        for name in self.trained:
            parameters[name].grad = None
        losses = models.losses(model(batch.tokens, batch.sometimes, batch.factor))
        whole = torch.stack([loss.double() for loss in losses]).sum()
        torch.autograd.backward(whole * scale)
        gradients = {}
        for name in self.trained:
            gradient = parameters[name].grad
            gradients[name] = torch.zeros_like(parameters[name], dtype=torch.float64) if gradient is None else gradient
            gradients[name] = gradients[name].double() / scale
        return float(whole.detach()), gradients

    def update(self, weights: Tensors, state: States, gradients: Tensors, rates: list[float]) -> Update:
        """Returns the result of one optimizer step in float64 from the weights and state before it; rates: by group."""
        result = Update()
        for group, rate in zip(self.groups, rates):
            names = [name for name in group["params"] if name in self.trained]
            leaves = {name: weights[name].detach().double().clone().requires_grad_() for name in names}
            kind = _OPTIMIZERS[self.recipe.kind]
            optimizer = kind([{**_own(kind, group), "lr": rate, "params": list(leaves.values())}])
            for name, parameter in leaves.items():
                parameter.grad = gradients[name].detach().double()
                if state.get(name):
                    optimizer.state[parameter] = {
                        key: value.double().clone() if key != "step" else value.float().clone().reshape(())
                        for key, value in state[name].items()
                    }
            optimizer.step()
            for name, parameter in leaves.items():
                result.parameters[name] = parameter.detach()
                result.state[name] = {k: v for k, v in optimizer.state[parameter].items() if torch.is_tensor(v)}
        return result

    def margins(self, weights: Tensors, state: States, gradients: Tensors, rates: list[float]) -> dict[str, float]:
        """Returns how much rounding may change each tensor's update, as a norm, if weight decay is added to gradients.

        Adam and Adagrad divide the sum by its own size: where the two nearly cancel, rounding is all that is left.
        """
        coupled = self.recipe.kind in ("adam", "adagrad") and any(group.get("weight_decay") for group in self.groups)
        if not coupled:
            return {}
        decay = {name: group.get("weight_decay", 0.0) for group in self.groups for name in group["params"]}
        true = self.update(weights, state, gradients, rates).parameters
        largest = {name: torch.zeros(()) for name in true}
        for sign in (-1.0, 1.0):
            nudged = {
                name: gradients[name].double() + sign * EPS32 * decay[name] * weights[name].double().abs()
                for name in true
            }
            for name, moved in self.update(weights, state, nudged, rates).parameters.items():
                largest[name] = torch.maximum(largest[name], (moved - true[name]).abs())
        return {name: float(off.norm()) for name, off in largest.items()}


_OPTIMIZERS: Mapping[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
}


def _own(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    known = {"weight_decay", "betas", "eps", "momentum", "dampening", "nesterov", "amsgrad", "lr_decay"}
    known &= inspect.signature(kind).parameters.keys()
    return {key: tuple(v) if isinstance(v, list) else v for key, v in options.items() if key in known}


def _load(model: Any, weights: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name].to(dtype))
    return parameters
