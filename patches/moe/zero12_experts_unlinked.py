"""ZeRO-1/2, MoE with ep_size > 1: `safe_get_full_fp32_param` returns zeros for experts.

Why: ZeRO notes for each parameter which part of the fp32 weights is its own. The size of a rank's part is computed with
    the number of all data-parallel ranks, for experts too, of which only some ranks have a copy: the parts appear
    ep_size times too small, and parameters beyond them have no fp32 weights. `safe_get_full_fp32_param`,
    `safe_get_full_optimizer_state` and their setters see zeros or a part, and a checkpoint does not say where these
    parameters are. The training itself is right.
How: the size is the number of ranks with a copy, as in 0.14.5 and later. With ep_size 1 both are the same.
Changes: what these functions return and set for experts. A checkpoint written without the patch can be resumed: what
    it lacks is read by conversions only.
Workaround: Scripts read experts' weights from the parameters instead. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LINK = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer._link_all_hp_params"
_WRONG = "partition_size = self.bit16_groups_flat[i].numel() // dp_world_size"
_RIGHT = (
    "partition_size = self.bit16_groups_flat[i].numel() // dist.get_world_size(group=self.real_dp_process_group[i])"
)

PATCH = Patch(
    title="ZeRO-1/2 + MoE with ep_size > 1: safe_get_full_fp32_param returns zeros for experts",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.5"},
    changes=(
        Edit(
            _LINK,
            replace=_WRONG,
            code=_RIGHT,
            effect=RAN,  # whether the script asks for experts' weights
            when="dist.get_world_size(group=self.real_dp_process_group[i]) != dp_world_size",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5681": "fixed in 0.14.5"},
    fixed_in="0.14.5",
    fixed=(Source(_LINK, _RIGHT),),
    ranks=2,
    config=lambda job: job.experts is True and job.stage in (1, 2),
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, models, reference = lab.torch, lab.models, lab.reference
    from ._experts import Sharded

    reports = []
    for stage in (1, 2):
        model = Sharded(lab, 2)
        inputs, targets = (each.to(lab.device) for each in models.regression_batch(lab.rank, 0))
        config = {
            "train_micro_batch_size_per_gpu": len(inputs),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.groups())
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
        own = lab.parameters(engine)
        seen = {
            name: lab.deepspeed.utils.safe_get_full_fp32_param(parameter).detach().cpu()
            for name, parameter in engine.module.named_parameters()
        }
        wrong = dict(own)
        flat = torch.cat([value.flatten() for name, value in own.items() if "deepspeed_experts" in name])
        flat[len(flat) // 2 :] = 0
        for name, value in own.items():
            if "deepspeed_experts" in name:
                wrong[name], flat = flat[: value.numel()].view_as(value), flat[value.numel() :]
        reports.append(
            reference.compare(
                seen,
                own,
                {"zero in the second half of this rank's expert": wrong},
                after=f"ZeRO-{stage}, 2 ranks:",
                what="the fp32 weights",
            )
        )
    return "; ".join(reports)
