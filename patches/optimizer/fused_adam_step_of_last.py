"""FusedAdam without ZeRO: one parameter's step count is used for all.

Why: FusedAdam.step counts only for the last parameter that has a gradient, once per dtype, and corrects the bias of all
    of them with that count. A job that unfreezes the last layers later restarts at step 1 with the moments of many
    steps: updates of the other layers are up to three times too small, for about a thousand steps. The same happens if
    the last parameter is not used in each step; if a group has two dtypes, each step counts twice. With ZeRO, and in
    fp16 and bf16, a group has one flat parameter.
How: counts for each parameter; the kernel is called once for each dtype and count, as before where all are equal.
Changes: jobs in which parameters of a group have gradients in different steps, or two dtypes. A checkpoint written
    without the patch has a count of 0 for all but the last parameter: they continue with the group's highest.
Workaround: Scripts put parameters that are unfrozen later into a separate group, or set `torch_adam`. You can keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.ops.adam.fused_adam:FusedAdam.step"


def of_equal_steps(optimizer: Any) -> Iterator[dict[str, Any]]:
    """The groups, each divided by its parameters' dtypes and counts, which it keeps right; even ones as they are."""
    # parameters that were stepped and not counted without the patch
    behind: set[int] = vars(optimizer).setdefault("_dsfix_behind", set())
    for group in optimizer.param_groups:
        used = [p for p in group["params"] if p.grad is not None]
        if not used:
            continue
        parts: dict[Any, list[Any]] = {}
        for p, step in zip(used, _steps(optimizer.state, group, used)):
            parts.setdefault((p.dtype, step), []).append(p)
        if len(parts) > 1 or id(used[-1]) in behind:
            took_effect(__name__, "Adam's bias correction used each parameter's own step count")
        behind.update(map(id, used[:-1]))
        group.setdefault("step", 0)
        for (_, step), params in parts.items():
            yield {**group, "params": params} if len(parts) > 1 else group
            for p in params:
                optimizer.state[p]["step"] = step + 1


def _steps(states: Any, group: dict[str, Any], used: list[Any]) -> list[int]:
    first = group.get("step", 0)
    steps = [int(states[p]["step"]) if states.get(p) else first for p in used]  # a tensor if loaded from torch's Adam
    if first in steps and any(states.get(p) for p in used):
        most = max(int(states[p]["step"]) for p in group["params"] if states.get(p))
        for index, p in enumerate(used):  # was not counted: a checkpoint written without the patch
            if steps[index] == first < most and states.get(p) and states[p]["exp_avg_sq"].any():
                steps[index] = most
    return steps


PATCH = Patch(
    title="FusedAdam without ZeRO: all parameters use the step count of one of them",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(_STEP, after="loss = None", code="groups = of_equal_steps(self)", uses=(of_equal_steps,)),
        Edit(_STEP, replace="self.param_groups", code="groups"),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/1823": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/8471": "proposed fix",
    },
    present=(
        Source(
            _STEP,
            "if len(g_32) > 0:\n    state['step'] += 1\n"
            "    multi_tensor_applier(self.multi_tensor_adam, self._dummy_overflow_buf, [g_32, p_32, m_32, v_32],"
            " group['lr'], beta1, beta2, group['eps'], state['step'], self.adam_w_mode, bias_correction,"
            " group['weight_decay'])",
        ),
    ),
)

_RATE, _FROZEN, _STEPS = 0.01, 3, 6


def reproduce(lab: Lab) -> str:
    torch, models = lab.torch, lab.models
    from .. import _half as half

    half.provide_fused_adam(lab)
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def plain(count_of_last: bool) -> dict[str, Any]:
        model = models.MLP()
        optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.0)
        for step, (inputs, targets) in enumerate(batches):
            model.head.requires_grad_(step >= _FROZEN)
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            if count_of_last and step >= _FROZEN:
                for state in optimizer.state.values():
                    state["step"].fill_(step - _FROZEN)
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    model = models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {"lr": _RATE, "weight_decay": 0.0, "torch_adam": False}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step, (inputs, targets) in enumerate(batches):
        model.head.requires_grad_(step >= _FROZEN)
        outputs = engine(inputs.to(lab.device))
        engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        plain(count_of_last=False),
        {"those of a step count that began anew with the head's": plain(count_of_last=True)},
        after=f"after {_STEPS} steps, {_FROZEN} of them with a frozen head,",
    )
