"""ZeRO-3: `engine.offload_states()` fails if some parameters are frozen: "exceeds dimension size".

Why: the weights that are trained are in one buffer. `offload_states` moves it and then gives a place in it to each
    parameter of the module, frozen ones too, which are not in it: the places end beyond the buffer. RLHF with LoRA,
    where the trained model is offloaded while another one generates, cannot use it.
How: it gives places to the parameters in the buffer, in the buffer's order. Frozen parameters stay on the GPU, as they
    do in `reload_states`. Without frozen parameters nothing changes, except that parameters read while offloaded have
    the right values even if the optimizer's groups are in another order than the module's.
Workaround: Scripts leave the weights on the GPU: `include` without `lp_params`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_OFFLOAD = f"{_OPTIMIZER}.offload_states"
_ALL = "[p.ds_tensor for p in self.module.parameters()]"

PATCH = Patch(
    title='ZeRO-3: offload_states with frozen parameters fails, "exceeds dimension size"',
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.2"},
    changes=(
        Edit(
            _OFFLOAD,
            replace=_ALL,
            code="[p.ds_tensor for sub_group in self.fp16_groups for p in sub_group]",
            effect="only trained weights were offloaded (unpatched: RuntimeError, exceeds dimension size)",
            when="sum(p.ds_tensor.numel() for p in self.module.parameters() if hasattr(p, 'ds_tensor'))"
            " > cpu_buffer.numel()",
        ),
    ),
    symptom=r"in offload_states\n[\s\S]*start \(\d+\) \+ length \(\d+\) exceeds dimension size",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/6011": "introduced in 0.15.2"},
    present=(Source(_OFFLOAD, _ALL),),
)

_STEPS, _LEARNING_RATE = 3, 0.01


def reproduce(lab: Lab) -> str:
    torch, models = lab.torch, lab.models
    from .. import _half as half

    half.provide_fused_adam(lab)
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    right, model = models.MLP(), models.MLP()
    for each in (right, model):
        each.blocks[0].requires_grad_(False)
    expected = lab.reference.train(right, [[batch] for batch in batches], right.loss, "AdamW", lr=_LEARNING_RATE)

    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        # only DeepSpeed's FusedAdam can be moved
        "optimizer": {"type": "AdamW", "params": {"lr": _LEARNING_RATE, "weight_decay": 0.01, "torch_adam": False}},
        "zero_optimization": {"stage": 3},
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = lab.initialize(model, config, model_parameters=trained)
    if not hasattr(engine, "offload_states"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no offload_states")
    for step, (inputs, targets) in enumerate(batches):
        if step:
            before = [parameter.ds_tensor.detach().cpu().clone() for parameter in model.parameters()]
            try:
                engine.offload_states()
            except RuntimeError as error:
                if "exceeds dimension size" in str(error):
                    raise BugPresent(f"in offload_states: {error}") from error
                raise
            for parameter, own in zip(model.parameters(), before):
                assert parameter.ds_tensor.is_cuda is not parameter.requires_grad
                torch.testing.assert_close(parameter.ds_tensor.detach().cpu(), own, rtol=0, atol=0)
            engine.reload_states()
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine), expected.parameters, after=f"after {_STEPS} steps and {_STEPS - 1} moves"
    )
