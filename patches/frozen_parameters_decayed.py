"""fp16 or bf16 without ZeRO: weight decay moves frozen parameters.

Why: FP16_Optimizer and FP16_UnfusedOptimizer make an fp32 copy of every parameter that the optimizer was given, frozen
    ones too, and put zeros where one has no gradient. torch's optimizers skip a parameter without a gradient; one whose
    gradient is zero is decayed, and moved by the momentum from before it was frozen. After each step the copy is
    written back: with LoRA and AdamW the base model shrinks. fp16: all releases up to 0.19.0; bf16: from 0.17.6 on, up
    to there it had a wrapper that leaves frozen parameters out. ZeRO-1 to 3 are not concerned.
How: what is frozen and has no gradient keeps its value. For torch's optimizers and DeepSpeed's own kernels its fp32
    copy has no gradient either. The flat copies of FP16_Optimizer, and optimizers that need a gradient of each
    parameter (1-bit LAMB, Muon) or may do so, get zeros as before, and the copy is put back after the step: of a
    parameter that has been frozen all along the parameter is what is put back, of others a copy that lives for the
    optimizer's step. The fp32 copies stay, and with them their memory: upstream leaves them out, but then a parameter
    that is unfrozen later never trains again, and checkpoints have another form. To save the memory give the optimizer
    the trainable parameters only.
    Not cured: apex's legacy fused Adam and DeepSpeed's FusedLamb, which write the parameters themselves; and in
    FP16_Optimizer the momentum of a parameter that is frozen for some steps decays meanwhile.
Changes: frozen parameters keep their values. A checkpoint written without the patch has them as they had become: take
    them from the base model.
Upstream: bf16 brought by https://github.com/deepspeedai/DeepSpeed/pull/7515 (0.17.6), both fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/8029 (0.19.1 on the package index; the tag v0.19.1 lacks it).
Retire: when DeepSpeed 0.19.0 is no longer supported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

# their optimizers leave alone what has no gradient; what others do with None is not known
_SKIP_WITHOUT_GRADIENT = ("torch.optim.", "deepspeed.ops.")


class Frozen:
    """The frozen parameters without a gradient at the beginning of a step, and what their fp32 copies are after it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.ids = {id(p) for group in optimizer.fp16_groups for p in group if not p.requires_grad and p.grad is None}
        stepper = type(optimizer.optimizer).__module__
        self.skipped = hasattr(optimizer, "fp32_groups") and stepper.startswith(_SKIP_WITHOUT_GRADIENT)
        self._aside: dict[int, Any] = {}

    def put_aside(self) -> None:
        """Just before the optimizer's step."""
        import torch

        # those frozen all along, whose copies the parameters are; None after a checkpoint, whose copies may say more
        known = getattr(self._optimizer, "_dsfix_frozen", self.ids)
        if self.ids and not (self.skipped and known is not None):
            pairs = [(p, copy) for p, copy in _copies(self._optimizer) if id(p) in self.ids]
            if known is None:  # once: it waits for the device
                equal = torch.stack([(copy == p).all() for p, copy in pairs]).tolist()
                known = {id(p) for (p, _), same in zip(pairs, equal) if same}
            if not self.skipped:
                self._aside = {id(p): copy.detach().clone() for p, copy in pairs if id(p) not in known}
        self._optimizer._dsfix_frozen = self._known = (known or set()) & self.ids

    def put_back(self, parameter: Any, copy: Any) -> None:
        """After it, for those of `ids`. They themselves are not written: a script may have, a moving average say."""
        if id(parameter) in self._known:
            copy.data.copy_(parameter.data)
        elif id(parameter) in self._aside:
            copy.data.copy_(self._aside[id(parameter)])


def _copies(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """The parameters, each with its fp32 copy, which in FP16_Optimizer is a view of a flat tensor."""
    from torch._utils import _unflatten_dense_tensors

    groups = optimizer.fp16_groups
    flat = getattr(optimizer, "fp32_groups_flat", ())
    for group, copies in zip(groups, map(_unflatten_dense_tensors, flat, groups) if flat else optimizer.fp32_groups):
        yield from zip(group, copies)


_FUSED = "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer"
_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
_BEGIN = f"from {__name__} import Frozen\nfrozen = Frozen(self)"
_LOADED = "self._dsfix_frozen = None"

PATCH = Patch(
    title="fp16 or bf16 without ZeRO: weight decay moves frozen parameters",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.1"},
    changes=(
        Edit(f"{_FUSED}.step", before="grads_groups_flat = []", code=_BEGIN),
        Edit(f"{_FUSED}.step", before="self.optimizer.step()", code="frozen.put_aside()"),
        Edit(
            f"{_FUSED}.step",
            replace="p.data.copy_(q.data)",
            code="if id(p) in frozen.ids:\n    frozen.put_back(p, q)\nelse:\n    p.data.copy_(q.data)",
        ),
        Edit(
            f"{_FUSED}.load_state_dict",
            before="for current, saved in zip(self.fp32_groups_flat, state_dict['fp32_groups_flat']):\n    ...",
            code=_LOADED,
        ),
        Edit(f"{_UNFUSED}.step", before="norm_groups = []", code=_BEGIN),
        Edit(
            f"{_UNFUSED}.step",
            after="fp32_param.grad = torch.zeros(fp16_param.size(), dtype=fp32_param.dtype, device=fp32_param.device)",
            code="if frozen.skipped and id(fp16_param) in frozen.ids:\n    fp32_param.grad = None",
        ),
        Edit(f"{_UNFUSED}.step", before="self.optimizer.step()", code="frozen.put_aside()"),
        Edit(
            f"{_UNFUSED}.step",
            replace="fp16_param.data.copy_(fp32_param.data)",
            code="if id(fp16_param) in frozen.ids:\n    frozen.put_back(fp16_param, fp32_param)\n"
            "else:\n    fp16_param.data.copy_(fp32_param.data)",
        ),
        Edit(
            f"{_UNFUSED}.load_state_dict",
            before="for current_group, saved_group in zip(self.fp32_groups, state_dict['fp32_groups']):\n    ...",
            code=_LOADED,
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/7515",
        "https://github.com/deepspeedai/DeepSpeed/pull/8029",
    ),
    fixed_in="0.19.1",
    present=(
        Source(f"{_FUSED}.__init__", "self.fp16_groups.append(param_group['params'])"),
        Source(f"{_UNFUSED}.__init__", "self.fp16_groups.append(param_group['params'])"),
    ),
    fixed=(
        Source(f"{_FUSED}.__init__", "trainable = [p for p in param_group['params'] if p.requires_grad]"),
        Source(f"{_UNFUSED}.__init__", "trainable = [p for p in param_group['params'] if p.requires_grad]"),
    ),
)

_LEARNING_RATE = 0.1
_WEIGHT_DECAY = 0.5
_STEPS = 3


def reproduce(lab: Lab) -> str:
    assert lab.torch  # before the next, which imports it without the device
    from dsfix.lab import half

    half.provide_fused_adam(lab)
    cases = [(precision, fused) for precision in ("fp16", "bf16") for fused in (True, False)]
    frozen = {
        f"{precision} {'fused' if fused else 'unfused'}": _train(lab, precision, fused) for precision, fused in cases
    }
    # each step multiplies by 1 - lr * decay, and so does that of fp16_step_at_initialization where that is left out
    decayed = [(1 - _LEARNING_RATE * _WEIGHT_DECAY) ** steps for steps in (_STEPS, _STEPS + 1)]
    moved = [name for name, ratio in frozen.items() if ratio != 1.0]
    wrong = [name for name in moved if min(abs(frozen[name] - each) for each in decayed) > 0.01]
    assert not wrong, f"frozen parameters times {frozen}"
    if moved:
        factors = ", ".join(f"{frozen[name]:.3f} ({name})" for name in moved)
        raise BugPresent(f"after {_STEPS} steps with weight decay frozen parameters are what they were times {factors}")
    return f"after {_STEPS} steps with weight decay all frozen parameters are what they were ({', '.join(frozen)})"


def _train(lab: Lab, precision: str, fused: bool) -> float:
    """By what the frozen parameters have been multiplied."""
    from dsfix.lab import half
    from dsfix.lab.models import MLP, regression_batch

    model = MLP()
    model.blocks.requires_grad_(False)
    dtype = lab.torch.float16 if precision == "fp16" else lab.torch.bfloat16
    before = {name: p.detach().to(dtype).float() for name, p in model.named_parameters()}
    params = {"lr": _LEARNING_RATE, "weight_decay": _WEIGHT_DECAY, "torch_adam": not fused}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": params},
        # fp16: a loss scale of 1, for later releases have a fault there
        precision: {"enabled": True, **({"initial_scale_power": 0} if precision == "fp16" else {})},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step in range(_STEPS):
        inputs, targets = regression_batch(lab.rank, step)
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()
    after = lab.parameters(engine)
    assert all((after[name] != before[name]).any() for name in before if name.startswith("head")), "nothing was trained"
    frozen = [name for name in before if name.startswith("blocks")]
    if all((after[name] == before[name]).all() for name in frozen):
        return 1.0
    largest = max(frozen, key=lambda name: float(before[name].abs().max()))
    return float(after[largest].sum() / before[largest].sum())
