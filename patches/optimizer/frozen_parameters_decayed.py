"""fp16 or bf16 without ZeRO: weight decay moves frozen parameters.

Why: FP16_Optimizer and FP16_UnfusedOptimizer keep an fp32 copy of every parameter that the optimizer was given,
    including frozen ones, and use zeros where a parameter has no gradient. torch's optimizers skip a parameter without
    a gradient, but a zero gradient means weight decay, and momentum from before it was frozen. After each step the copy
    is written back: with LoRA and AdamW the base model shrinks. fp16: all releases through 0.19.0; bf16: since 0.17.6,
    until then its wrapper left frozen parameters out. ZeRO-1 to 3 are not affected.
How: frozen parameters without a gradient keep their values: torch's optimizers and DeepSpeed's kernels get no gradient
    for them; where a gradient is needed (FP16_Optimizer, 1-bit LAMB, Muon) the copy is restored after the step. The
    fp32 copies stay, so that a parameter can be unfrozen later. Not fixed: apex's legacy fused Adam and DeepSpeed's
    FusedLamb; and in FP16_Optimizer momentum decays while a parameter is frozen.
Changes: frozen parameters keep their values. A checkpoint written without the patch contains the changed ones: take
    them from the base model.
Workaround: Scripts pass the optimizer only the trainable parameters. You can keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

# their optimizers skip parameters without a gradient; what others do with None is unknown
_SKIP_WITHOUT_GRADIENT = ("torch.optim.", "deepspeed.ops.")


class Frozen:
    """The frozen parameters without a gradient at the beginning of a step; restores their fp32 copies after it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.ids = {id(p) for group in optimizer.fp16_groups for p in group if not p.requires_grad and p.grad is None}
        stepper = type(optimizer.optimizer).__module__
        self.skipped = hasattr(optimizer, "fp32_groups") and stepper.startswith(_SKIP_WITHOUT_GRADIENT)
        self._aside: dict[int, Any] = {}

    def put_aside(self) -> None:
        """Call it just before the optimizer's step."""
        import torch

        if self.ids and _decays(self._optimizer, self.ids):
            took_effect(__name__, "weight decay did not change frozen parameters")
        # those always frozen, whose copies equal the parameters; None after loading a checkpoint, which may differ
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
        """Call it after the step for those in `ids`. Parameters are not written: a script may have, e.g. an average."""
        if id(parameter) in self._known:
            copy.data.copy_(parameter.data)
        elif id(parameter) in self._aside:
            copy.data.copy_(self._aside[id(parameter)])


def _decays(optimizer: Any, ids: set[int]) -> bool:
    """Whether a group with weight decay has one of the parameters with these ids: looked up in the first step."""
    if getattr(optimizer, "_dsfix_frozen", None) is not None:
        return False
    pairs = zip(optimizer.optimizer.param_groups, optimizer.fp16_groups)
    return any(group.get("weight_decay") and any(id(p) in ids for p in own) for group, own in pairs)


def _copies(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Each parameter with its fp32 copy, which in FP16_Optimizer is a view of a flat tensor."""
    from torch._utils import _unflatten_dense_tensors

    groups = optimizer.fp16_groups
    flat = getattr(optimizer, "fp32_groups_flat", ())
    for group, copies in zip(groups, map(_unflatten_dense_tensors, flat, groups) if flat else optimizer.fp32_groups):
        yield from zip(group, copies)


_FUSED = "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer"
_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer"
_BEGIN = "frozen = Frozen(self)"
_LOADED = "self._dsfix_frozen = None"


def _meets(job: Job) -> bool:
    wrapped = job.may_be("fp16") or (job.may_be("bf16") and job.release >= Version("0.17.6") and not job.pipeline)
    return job.stage == 0 and wrapped and job.frozen is True and job.decays


PATCH = Patch(
    title="fp16 or bf16 without ZeRO: weight decay moves frozen parameters",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.1"},
    changes=(
        Edit(f"{_FUSED}.step", before="grads_groups_flat = []", code=_BEGIN, uses=(Frozen,)),
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
        Edit(f"{_UNFUSED}.step", before="norm_groups = []", code=_BEGIN, uses=(Frozen,)),
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
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7515": "introduced for bf16 in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/8029": "fixed in 0.19.1 on PyPI; the tag v0.19.1 lacks it",
    },
    fixed_in="0.19.1",
    present=(
        Source(f"{_FUSED}.__init__", "self.fp16_groups.append(param_group['params'])"),
        Source(f"{_UNFUSED}.__init__", "self.fp16_groups.append(param_group['params'])"),
    ),
    fixed=(
        Source(f"{_FUSED}.__init__", "trainable = [p for p in param_group['params'] if p.requires_grad]"),
        Source(f"{_UNFUSED}.__init__", "trainable = [p for p in param_group['params'] if p.requires_grad]"),
    ),
    config=_meets,
)

_LEARNING_RATE = 0.1
_WEIGHT_DECAY = 0.5
_STEPS = 3


def _train(lab: Lab, precision: str, fused: bool) -> float:
    """The factor by which the frozen parameters were multiplied."""
    models = lab.models
    from .. import _half as half

    half.provide_fused_adam(lab)
    model = models.MLP()
    model.blocks.requires_grad_(False)
    dtype = lab.torch.float16 if precision == "fp16" else lab.torch.bfloat16
    before = {name: p.detach().to(dtype).float() for name, p in model.named_parameters()}
    params = {"lr": _LEARNING_RATE, "weight_decay": _WEIGHT_DECAY, "torch_adam": not fused}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": params},
        # fp16: a loss scale of 1, because later releases have a bug with others
        precision: {"enabled": True, **({"initial_scale_power": 0} if precision == "fp16" else {})},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step in range(_STEPS):
        inputs, targets = models.regression_batch(lab.rank, step)
        engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
        engine.step()
    after = lab.parameters(engine)
    assert all((after[name] != before[name]).any() for name in before if name.startswith("head")), "nothing was trained"
    frozen = [name for name in before if name.startswith("blocks")]
    if all((after[name] == before[name]).all() for name in frozen):
        return 1.0
    largest = max(frozen, key=lambda name: float(before[name].abs().max()))
    return float(after[largest].sum() / before[largest].sum())


def reproduce(lab: Lab) -> str:
    cases = [(precision, fused) for precision in ("fp16", "bf16") for fused in (True, False)]
    frozen = {
        f"{precision} {'fused' if fused else 'unfused'}": _train(lab, precision, fused) for precision, fused in cases
    }
    # each step multiplies by 1 - lr * decay, and so does that of fp16_step_at_initialization if it is skipped
    decayed = [(1 - _LEARNING_RATE * _WEIGHT_DECAY) ** steps for steps in (_STEPS, _STEPS + 1)]
    moved = [name for name, ratio in frozen.items() if ratio != 1.0]
    wrong = [name for name in moved if min(abs(frozen[name] - each) for each in decayed) > 0.01]
    assert not wrong, f"frozen parameters were multiplied by {frozen}"
    if moved:
        factors = ", ".join(f"{frozen[name]:.3f} ({name})" for name in moved)
        raise BugPresent(f"after {_STEPS} steps with weight decay frozen parameters were multiplied by {factors}")
    return f"after {_STEPS} steps with weight decay all frozen parameters are unchanged ({', '.join(frozen)})"
