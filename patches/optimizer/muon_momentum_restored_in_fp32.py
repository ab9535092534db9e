"""Muon with ZeRO-1/2 in half precision: the first step after load_checkpoint fails, expected dtype float for `end`.

Why: Muon's momentum has the dtype in which gradients are accumulated. A checkpoint brings it back in fp32, that of the
    parameters which its optimizer has. Since 0.18.3 the update takes it as it is, and torch's `lerp_` refuses another
    dtype than the gradient's, bf16 or fp16. ZeRO-2 with bf16 gradients and `"grad_accum_dtype": "fp32"` fails in its
    very first step.
How: the momentum gets the dtype of the gradients before the first update, as in 0.19.7 and later.
Workaround: Scripts cast the momentum themselves after `load_checkpoint`. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FLAT = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.get_flat_partition"


def match_momentum(state: dict[str, Any], gradients: list[Any]) -> None:
    """Gives a group's momentum the dtype of its gradients. state: that of its partition."""
    momentum, dtype = state["momentum_buffer"], gradients[0].dtype
    if momentum.dtype != dtype:
        took_effect(__name__, "Muon's momentum got the dtype of the gradients; step would have failed")
        state["momentum_buffer"] = momentum.to(dtype)


PATCH = Patch(
    title="Muon + ZeRO-1/2 in half precision: the first step after load_checkpoint fails, expected dtype float",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.18.3,<0.19.7"},
    changes=(
        Edit(
            _FLAT,
            before="buffer_idx = 0",
            code="if getattr(tensor_list[0], 'use_muon', False)"
            " and 'muon' in self.optimizer.__class__.__name__.lower():\n"
            "    match_momentum(self.optimizer.state[flatten_copy], self.all_grad_tensors[param_group_idx])",
            uses=(match_momentum,),
        ),
    ),
    symptom=r"muon[\s\S]*expected dtype \S+ for `end`,? but got dtype",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7746": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7648": "introduced in 0.18.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8433": "fixed in 0.19.7",
        "https://github.com/deepspeedai/DeepSpeed/pull/8483": "fixed in 0.19.7, without a checkpoint",
    },
    fixed_in="0.19.7",
    present=(Source(_FLAT, "flatten_bf_list = [torch.zeros([total_size], dtype=dtype, device=device)]"),),
    fixed=(Source(_FLAT, "self._muon_momentum_buffer(tensor_list, param_group_idx, dtype, device)"),),
    config=lambda job: job.optimizer == "muon" and job.stage in (1, 2) and job.half and not job.offloads_optimizer,
)

_STEPS = 4


def reproduce(lab: Lab) -> str:
    deepspeed = lab.deepspeed
    try:
        import deepspeed.runtime.zero.muon.original_muon as _  # noqa: F401
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no Muon") from None
    from ..moe._experts import run_eagerly

    run_eagerly()  # old torch cannot compile the update on the emulated device
    for stage, precision in ((1, "bf16"), (2, "fp16")):
        engine = _engine(lab, stage, precision)
        for step in range(_STEPS):
            if step == _STEPS // 2:
                engine.save_checkpoint(str(lab.tmp / precision))
            _train(lab, engine, step, precision)
        right = lab.parameters(engine)
        engine = _engine(lab, stage, precision)
        engine.load_checkpoint(str(lab.tmp / precision))
        try:
            for step in range(_STEPS // 2, _STEPS):
                _train(lab, engine, step, precision)
        except RuntimeError as error:
            frames = [each.name for each in traceback.extract_tb(error.__traceback__)]
            if "expected dtype" in str(error) and "muon_update" in frames:
                raise BugPresent(f"ZeRO-{stage} in {precision}, resumed: RuntimeError: {error}") from error
            raise
        lab.reference.compare(lab.parameters(engine), right, within=1e-6, after=f"resumed, after {_STEPS} steps")
    return f"resumed, after {_STEPS} steps the parameters are those of a job that never stopped"


def _engine(lab: Lab, stage: int, precision: str) -> Any:
    torch = lab.torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 16, bias=False))
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {"type": "Muon", "params": {"lr": 0.02, "weight_decay": 0.0}},
        "zero_optimization": {"stage": stage, "reduce_scatter": False},
        precision: {"enabled": True, **({"loss_scale": 1.0} if precision == "fp16" else {})},
    }
    return lab.initialize(model, config, model_parameters=model.parameters())


def _train(lab: Lab, engine: Any, step: int, precision: str) -> None:
    inputs = lab.models.regression_batch(rank=0, step=step, size=32)[0].to(lab.device)
    outputs = engine(inputs.bfloat16() if precision == "bf16" else inputs.half())
    engine.backward(outputs.float().square().mean())
    engine.step()
