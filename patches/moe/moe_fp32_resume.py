"""MoE in fp32 without ZeRO: load_checkpoint fails with KeyError: 'optimizer'.

Why: a model with MoE layers has its optimizer's state in separate files, one per expert-parallel rank.
    `load_checkpoint` reads the right one, and then, unless fp16 or bf16 is enabled, takes the state from the file with
    the weights, which has none: a job cannot resume. `load_optimizer_states=False` avoids it.
How: with MoE layers the state that was read is kept. Jobs without them are unchanged. Checkpoints that were written
    without the patch have the state, and can be resumed from.
Workaround: Scripts load with `load_optimizer_states=False` and start with new moments. You can keep it; without it, the
    saved ones are loaded.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.engine:DeepSpeedEngine._load_checkpoint"

PATCH = Patch(
    title="MoE in fp32 without ZeRO: load_checkpoint fails with KeyError: 'optimizer'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.19.3"},
    changes=(
        Edit(
            _LOAD,
            # the first is reached without MoE layers only
            replace="optim_checkpoint = checkpoint",
            count=2,
            code="optim_checkpoint = optim_checkpoint if self.has_moe_layers else checkpoint",
            effect="the optimizer's state was taken from its own file (unpatched: KeyError)",
            when="self.has_moe_layers and 'optimizer' not in checkpoint",
        ),
    ),
    symptom=r"in _load_checkpoint\s+self\.optimizer\.load_state_dict\(.*\s[\s\S]{0,200}?KeyError: 'optimizer'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4120": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/8064": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    fixed=(
        Source(
            _LOAD,
            "if self.fp16_enabled() or self.bfloat16_enabled():\n    ...\n"
            "else:\n    self.optimizer.load_state_dict(optim_checkpoint['optimizer'])",
        ),
    ),
    config=lambda job: job.experts is True and job.stage == 0 and not job.half,
)

_STEPS = 4


def reproduce(lab: Lab) -> str:
    models, reference = lab.models, lab.reference
    from ..checkpoint import _checkpoints as checkpoints
    from . import _experts as experts

    checkpoints.load_whole_files()
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    options = {"lr": 0.01, "weight_decay": 0.0}
    model = experts.Mixture()
    right = reference.train(model, [[batch] for batch in batches], model.loss, "AdamW", **options)
    half, rest = batches[: _STEPS // 2], batches[_STEPS // 2 :]
    model = experts.Mixture()
    begun = reference.train(model, [[batch] for batch in half], model.loss, "AdamW", **options)
    without_moments = reference.train(model, [[batch] for batch in rest], model.loss, "AdamW", **options)
    assert reference.largest_difference(without_moments.parameters, begun.parameters).absolute > 0

    def start() -> tuple[experts.Sharded, Any]:
        sharded = experts.Sharded(lab, ep_size=1)
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "AdamW", "params": {**options, "torch_adam": True}},
        }
        return sharded, lab.initialize(sharded, config, model_parameters=sharded.groups())

    _, engine = start()
    checkpoints.train(lab, engine, half)
    engine.save_checkpoint(str(lab.tmp), tag="half")
    sharded, engine = start()
    try:
        engine.load_checkpoint(str(lab.tmp), tag="half")
    except KeyError as error:
        if error.args == ("optimizer",) and traceback.extract_tb(error.__traceback__)[-1].name == "_load_checkpoint":
            raise BugPresent("load_checkpoint: KeyError: 'optimizer'") from error
        raise
    checkpoints.train(lab, engine, rest)
    return reference.compare(
        sharded.named(lab.parameters(engine)),
        right.parameters,
        {"those of an optimizer without its moments": without_moments.parameters},
        after=f"resumed after {len(half)} of {_STEPS} steps",
    )
