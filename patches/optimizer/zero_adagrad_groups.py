"""ZeRO-1 to 3 with torch's Adagrad and several parameter groups: IndexError, or the groups' options are lost.

Why: torch's Adagrad creates its state at construction, for the model's parameters and not for ZeRO's partitions of
    them. ZeRO therefore creates a new Adagrad, with all partitions in one group and the options that the first one was
    constructed with. With several groups the first step fails, IndexError. With one group its own learning rate and
    weight decay are no longer used; nor are those that the script, or a schedule that holds the optimizer, sets later.
How: keeps the optimizer, with its groups, and gives it the new one's state. A subclass with its own constructor, whose
    state may differ, is replaced as before.
Changes: torch's Adagrad with one group that has its own options: they are used. Several groups train for the first
    time. Others are bit-identical. A checkpoint written without the patch restores the options it was trained with:
    set the group's own again after `load_checkpoint`.
Workaround: Scripts give Adagrad one group, with the options that it is constructed with. You can keep it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran, took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ZERO_1_2 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_ZERO_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_CONSTRUCT = "self.optimizer = torch.optim.Adagrad(self.{}, **self.optimizer.defaults)"


def allocate(optimizer: Any, partitions: Iterable[Any]) -> Any:
    """This Adagrad with the state of the partitions; another one, as without the patch, if its state may be its own."""
    import torch

    fresh = torch.optim.Adagrad(list(partitions), **optimizer.defaults)
    if type(optimizer).__init__ is not torch.optim.Adagrad.__init__:
        return fresh
    ran(__name__)
    if len(optimizer.param_groups) > 1:
        took_effect(__name__, "Adagrad kept its %s parameter groups", len(optimizer.param_groups))
    optimizer.state.clear()
    optimizer.state.update(fresh.state)
    return optimizer


PATCH = Patch(
    title="ZeRO-1 to 3 + torch's Adagrad + several parameter groups: IndexError, or the groups' options are lost",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=tuple(
        Edit(
            f"{optimizer}.initialize_optimizer_states",
            replace=_CONSTRUCT.format(partitions),
            code=f"self.optimizer = allocate(self.optimizer, self.{partitions})",
            uses=(allocate,),
        )
        for optimizer, partitions in (
            (_ZERO_1_2, "single_partition_of_fp32_groups"),
            (_ZERO_3, "fp32_partitioned_groups_flat"),
        )
    ),
    symptom=r"(?:original_param_groups\[group_no\]|optimizer\.param_groups\[param_group_idx?\]\['params'\])"
    r".*\n(?:.*\^.*\n)?.*IndexError: list index out of range",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/3401": "introduced",
    },
    present=(
        # where the optimizer needs the groups that it has lost
        Source(f"{_ZERO_1_2}._optimizer_step", "self.optimizer.param_groups = [original_param_groups[group_no]]"),
        Source(f"{_ZERO_3}._optimizer_step", "self.optimizer.param_groups[param_group_id]['params'] = [fp32_param]"),
        Source(
            f"{_ZERO_3}.initialize_optimizer_states",
            f"if is_adagrad:\n    {_CONSTRUCT.format('fp32_partitioned_groups_flat')}\n"
            "self.timers(INIT_OPTIMIZER_TIMER).stop()",
        ),
    ),
)

_RATES = (0.1, 0.02)
_DECAY = 0.1
_DEFAULT_RATE = 0.05
_STEPS = 3


def reproduce(lab: Lab) -> str:
    torch, largest_difference = lab.torch, lab.reference.largest_difference
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def made(model: Any, several: bool) -> Any:
        """Adagrad of two groups with a learning rate each, or of one with its own."""
        parts = (model.blocks, model.head) if several else (model,)
        groups = [{"params": list(part.parameters()), "lr": rate} for part, rate in zip(parts, _RATES)]
        groups[0]["weight_decay"] = _DECAY
        return torch.optim.Adagrad(groups, lr=_DEFAULT_RATE)

    def plain(model: Any, optimizer: Any) -> dict[str, Any]:
        for inputs, targets in batches:
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    seen, largest = [], 0.0
    for stage in (1, 2, 3):
        for several in (True, False):
            case = f"ZeRO-{stage}, {'two groups' if several else 'one group'}"
            model = lab.models.MLP()
            expected = plain(model, made(model, several))
            model = lab.models.MLP()
            without_options = plain(model, torch.optim.Adagrad(model.parameters(), lr=_DEFAULT_RATE))
            model = lab.models.MLP()
            config = {"train_micro_batch_size_per_gpu": len(batches[0][0]), "zero_optimization": {"stage": stage}}
            engine = lab.initialize(model, config, optimizer=made(model, several))
            try:
                for inputs, targets in batches:
                    outputs = engine(inputs.to(lab.device))
                    engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
                    engine.step()
            except IndexError as error:
                if not several:
                    raise
                seen.append(f"{case}: {error}")
                continue
            parameters = lab.parameters(engine)
            difference = largest_difference(parameters, expected)
            if not several and largest_difference(parameters, without_options).relative < 1e-5 < difference.relative:
                seen.append(f"{case}: off {difference.relative:.2g}")
                continue
            assert difference.relative < 1e-5, f"{case}: {difference}"
            largest = max(largest, difference.relative)
    if seen:
        raise BugPresent("; ".join(seen))
    return f"ZeRO-1 to 3, one and two groups: after {_STEPS} steps the parameters match Adagrad within {largest:.1e}"
