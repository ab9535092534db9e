"""ZeRO-3 with frozen parameters (LoRA) and non-reentrant gradient checkpointing: CheckpointError in the backward pass.

Why: ZeRO-3 gathers a module's parameters before its forward pass and empties them afterwards, by replacing the
    parameter's data. While a checkpoint is recomputed, torch keeps what the operations save: since torch 2.5, a tensor
    that requires a gradient as a detached alias, any other as it is. A frozen parameter is therefore empty when torch
    compares shapes: saved [n], recomputed [0]. With LoRA it is the norms' weights and, with DeepSpeed's own linear
    function, those of the linear layers.
How: torch detaches a frozen ZeRO-3 parameter (it has a `ds_id`) as it detaches a trainable one: the alias keeps the
    gathered data until the backward pass has used it. torch's check of the recomputation stays on; other tensors are
    unchanged. Not covered: selective checkpointing (`context_fn`), which fails with ZeRO-3 even without frozen
    parameters.
Workaround: Scripts set `use_reentrant=True`, which needs inputs that require a gradient, or `determinism_check="none"`,
    which disables torch's check. You can keep it, at its price.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_RELEASE = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator.release_sub_module"
_EMPTIED = r"recomputed metadata: \{'shape': torch\.Size\(\[0\]\)"

PATCH = Patch(
    title="ZeRO-3 + frozen parameters (LoRA) + non-reentrant checkpointing: CheckpointError, recomputed shape [0]",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.19.3", "torch": ">=2.5"},
    changes=(
        Edit(
            "torch.utils.checkpoint:_recomputation_hook.__init__.<locals>.pack_hook",
            replace="x.requires_grad",
            code="x.requires_grad or hasattr(x, 'ds_id')",
            effect=RAN,  # whether the module empties it before torch compares, nothing shows yet
            when="not x.requires_grad and hasattr(x, 'ds_id')",
        ),
    ),
    symptom=rf"CheckpointError[\s\S]*{_EMPTIED}",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/4332": "reported",
        "https://github.com/huggingface/transformers/issues/47254": "reported",
        "https://github.com/huggingface/trl/issues/2514": "reported",
        "https://github.com/huggingface/trl/issues/5217": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8130": "related: first proposed fix",
        "https://github.com/deepspeedai/DeepSpeed/pull/8148": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    present=(Source(_RELEASE, "param.ds_id in params_to_release and not param.is_external_param"),),
    fixed=(
        Source(_RELEASE, "params_to_release.update(recompute_params)"),
        # the form first proposed upstream, used as a hand edit
        Source(_RELEASE, "torch._C._current_graph_task_id() != -1"),
    ),
)

_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    losses, parameters = _train(lab, checkpointing=None)
    try:
        recomputed_losses, recomputed_parameters = _train(lab, checkpointing="non-reentrant")
    except RuntimeError as error:
        found = re.search(rf"saved metadata: .*\n.*{_EMPTIED}", str(error))
        if type(error) is getattr(torch.utils.checkpoint, "CheckpointError", None) and found:
            shapes = re.findall(r"torch\.Size\((\[\d+\])\)", found.group())
            raise BugPresent("CheckpointError: a frozen parameter saved {}, recomputed {}".format(*shapes)) from error
        raise
    assert recomputed_losses == losses, f"losses {recomputed_losses}, without checkpointing {losses}"
    difference = lab.reference.largest_difference(recomputed_parameters, parameters)
    assert difference.absolute == 0.0, f"after {_STEPS} steps {difference}"
    return f"{_STEPS} steps with losses and parameters bit-identical to those without checkpointing"


def _train(lab: Lab, checkpointing: str | None) -> tuple[list[float], dict[str, Any]]:
    torch = lab.torch
    model = lab.models.Transformer(checkpointing=checkpointing)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine = lab.initialize(model, config, model_parameters=trained)
    losses = []
    for step in range(_STEPS):
        tokens, targets = lab.models.token_batch(rank=0, step=step)
        logits = engine(tokens.to(lab.device))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.to(lab.device).flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses, lab.parameters(engine)
