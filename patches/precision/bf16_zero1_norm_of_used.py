"""bf16 + ZeRO-1 + fp32 accumulation: the gradient norm omits parameters unused on this rank.

Why: BF16_Optimizer (bf16 with ZeRO-1 and `data_types.grad_accum_dtype: "fp32"`, through 0.17.5 also bf16 without ZeRO,
    and bf16 in a pipeline) takes the norm of those parameters that had a gradient on this rank, and clips only them,
    although it has the gradients of the other ranks for all. Where the ranks use different parameters (experts,
    branches, modalities, dropped layers), each computes a different norm and scales its part of the gradients by it:
    one step has several clip factors, and the log one rank's norm. Nothing fails, except on a rank that used no
    parameter: IndexError, or in 0.19.8 RuntimeError.
How: the norm covers all gradients, and all are clipped. The gradients of parameters that no rank used are 0. Through
    0.14.0 the norm waits for the device once per parameter; now also for these.
Changes: jobs whose ranks use different parameters: norm and, with clipping, updates. Where all ranks leave out the same
    ones, the norm is a sum of the same numbers and zeros: at most its last bit differs. A checkpoint written without
    the patch loads.
Workaround: Scripts add what the rank does not use to the output, multiplied by 0. You can keep it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"
_SKIP = "if not self.fp32_groups_has_gradients[i][j]:\n    continue"
_SKIP_NONE = "if self.fp32_groups_gradients[i][j] is None:\n    continue"  # never

PATCH = Patch(
    title="bf16 + ZeRO-1 + fp32 accumulation: the gradient norm omits parameters unused on this rank",
    severity=Severity.WRONG_RESULT,
    # in those left out only bf16_zero1_silently_off gives
    # a job this optimizer, and takes the norm of all
    affects={"deepspeed": ">=0.12.0,!=0.17.6,!=0.18.0,!=0.18.1,!=0.18.2,!=0.18.3,!=0.18.4"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.get_grads_for_norm",
            replace=_SKIP,
            code=_SKIP_NONE,
            effect=RAN,  # what other ranks have used is not known here
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7409": "related: an IndexError on a rank without any gradient",
        "https://github.com/deepspeedai/DeepSpeed/pull/1801": "introduced",
    },
    present=(Source(f"{_OPTIMIZER}.get_grads_for_norm", _SKIP),),
    fixed=(Source("deepspeed.runtime.constants", "DDP_BFLOAT16 = 'bf16'"),),
    ranks=2,
)

_LEARNING_RATE, _CLIP = 1.0, 0.5


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from .. import _half as half

    batches = [lab.models.regression_batch(rank=rank, step=0) for rank in range(2)]

    def call(model: Any, rank: int, inputs: Any) -> Any:
        return model(inputs, both=rank == 0)  # the other rank does not use the branch

    def stepped(clip_all: bool) -> dict[str, Any]:
        """The masters' values after a step in plain PyTorch, and the norm."""
        model = lab.models.Branches().to(lab.device, torch.bfloat16)
        masters = {name: p.detach().float().clone() for name, p in model.named_parameters()}
        gradients = {name: torch.zeros_like(master) for name, master in masters.items()}
        used: set[str] = set()
        for rank, (inputs, targets) in enumerate(batches):
            model.zero_grad()
            half.loss(functools.partial(call, model, rank), inputs, targets, model.first.head.weight).backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    gradients[name] += parameter.grad.float() / len(batches)
                    used |= {name} if rank == lab.rank else set()
        names = [name for name in gradients if clip_all or name in used]
        norm = torch.stack([gradients[name].norm() for name in names]).norm()
        for name in names:
            gradients[name] *= min(1.0, float(_CLIP / (norm + 1e-6)))
        result = {name: (master - _LEARNING_RATE * gradients[name]).cpu() for name, master in masters.items()}
        return {"weights": torch.cat([each.flatten() for each in result.values()]), "norm": norm.cpu()}

    right, wrong = stepped(clip_all=True), stepped(clip_all=False)
    model = lab.models.Branches()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "gradient_clipping": _CLIP,
        "zero_optimization": {"stage": 1},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    like = next(engine.module.parameters())
    inputs, targets = batches[lab.rank]
    engine.backward(half.loss(functools.partial(call, engine, lab.rank), inputs, targets, like))
    engine.step()
    norms = lab.reference.compare(
        {"norm": torch.as_tensor(float(engine.get_global_grad_norm()))},
        {"norm": right["norm"]},
        {"that of the parameters that this rank used": {"norm": wrong["norm"]}} if lab.rank else {},
        within=0.002,
        what="the norms",
    )
    own = torch.cat([p.detach().flatten().cpu() for group in engine.optimizer.param_groups for p in group["params"]])
    difference = half.zero1_difference(lab, own, right["weights"])
    assert difference < 0.002, f"the weights differ by {difference:.1e}"
    return f"{norms}, and the weights within {difference:.1e}"
