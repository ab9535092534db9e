"""ZeRO-3: `engine.reload_states()` scrambles the weights if the optimizer has them in another order than the module.

Why: ZeRO-3 keeps the weights in one buffer, in the order of the optimizer's groups. `reload_states` brings the buffer
    back and then gives each parameter its place in the order of the module. With weight decay for some parameters only,
    as transformers and most RLHF frameworks have it, or with one group in another order, the two orders differ: forward
    and backward run with scrambled weights until the next step that is not skipped for an overflow, which restores them
    from the fp32 weights. Only the loss shows it.
How: gives each parameter its place in the order of the groups, as the buffer was made. While the states are offloaded,
    the order is the module's, as upstream.
Changes: jobs whose groups are in another order than the module: the first step after each reload, and evaluation,
    generation and weights sent elsewhere before it, use the right weights. A checkpoint written without the patch can
    be resumed; the wrong steps before it are not undone.
Workaround: Scripts leave the weights on the GPU: `include` without `lp_params`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_RELOAD = f"{_OPTIMIZER}.reload_states"

PATCH = Patch(
    title="ZeRO-3, optimizer's parameters not in the module's order: weights are scrambled after reload_states",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.15.2,<0.16.5"},
    changes=(
        Edit(
            _RELOAD,
            replace="[p.ds_tensor for p in self.module.parameters()]",
            code="[p.ds_tensor for sub_group in self.fp16_groups for p in sub_group]",
            effect="weights were put back in the groups' order (unpatched: scrambled)",
            when="[id(p) for p in self.module.parameters()]"
            " != [id(p) for sub_group in self.fp16_groups for p in sub_group]",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6011": "introduced in 0.15.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7050": "fixed in 0.16.5",
    },
    fixed_in="0.16.5",
    # the order in which the buffer is made, which the edit relies on
    present=(
        Source(
            f"{_OPTIMIZER}._create_fp16_partitions_with_defragmentation",
            "for sub_group in self.fp16_groups:\n"
            "    for param in sub_group:\n"
            "        parameter_partitions.append(param.ds_tensor)",
        ),
    ),
    fixed=(Source(_RELOAD, "parameter_partitions = self._get_parameter_partitions()"),),
)

_STEPS, _LEARNING_RATE, _DECAY = 4, 0.01, 0.1


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from .. import _half as half

    half.provide_fused_adam(lab)
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def groups(model: Any) -> list[dict[str, Any]]:
        """Weight decay for matrices, none for biases and norms."""
        return [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": _DECAY},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ]

    def plain(scrambled: bool) -> dict[str, Any]:
        """Training in plain PyTorch, each step but the first with the weights as the bug leaves them."""
        model = lab.models.MLP()
        optimizer = torch.optim.AdamW(groups(model), lr=_LEARNING_RATE)
        for step, (inputs, targets) in enumerate(batches):
            own = [p.detach().clone() for p in model.parameters()]
            if scrambled and step:
                ordered = torch.cat([p.detach().flatten() for group in optimizer.param_groups for p in group["params"]])
                parts = ordered.split([p.numel() for p in own])
                for parameter, part in zip(model.parameters(), parts):
                    parameter.data.copy_(part.view_as(parameter))
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            for parameter, value in zip(model.parameters(), own):
                parameter.data.copy_(value)
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        # only DeepSpeed's FusedAdam can be moved
        "optimizer": {"type": "AdamW", "params": {"lr": _LEARNING_RATE, "torch_adam": False}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=groups(model))
    if not hasattr(engine, "reload_states"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no reload_states")
    for step, (inputs, targets) in enumerate(batches):
        if step:
            engine.offload_states()
            engine.reload_states()
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        plain(scrambled=False),
        {"those of gradients of scrambled weights": plain(scrambled=True)},
        after=f"after {_STEPS} steps and {_STEPS - 1} reloads",
    )
