"""ZeRO-3 with frozen parameters (LoRA) and non-reentrant gradient checkpointing: CheckpointError in the backward pass.

Why: ZeRO-3 gathers a module's parameters before its forward pass and empties them afterwards, by giving the parameter
    other data. During the recomputation of a checkpoint torch keeps what the operations save: since torch 2.5 a tensor
    that needs a gradient as a detached alias, any other as it is. A frozen parameter then is the emptied parameter by
    the time that torch compares shapes: saved [n], recomputed [0]. All of 0.12.0 to 0.19.2 has it, with every way of
    freezing; with LoRA it is the norms' weights and, with DeepSpeed's own linear function, those of the linear layers.
    The workarounds have their price: `use_reentrant=True` needs inputs that require a gradient,
    `determinism_check="none"` switches torch's check off.
How: torch detaches a frozen ZeRO-3 parameter (it has a `ds_id`) as it detaches a trainable one: the alias keeps the
    gathered data until the backward pass has used it, no longer than it keeps a trainable parameter's. torch's check
    of what was recomputed stays on; nothing changes for tensors that are not ZeRO-3's. DeepSpeed 0.19.3 reaches the
    same by keeping the frozen parameters gathered until the backward pass of the module that holds the checkpoint.
    Not covered: selective checkpointing (`context_fn`), which fails under ZeRO-3 without frozen parameters as well.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/4332 and
    https://github.com/huggingface/transformers/issues/47254, https://github.com/huggingface/trl/issues/2514,
    https://github.com/huggingface/trl/issues/5217, first answered by
    https://github.com/deepspeedai/DeepSpeed/pull/8130, fixed by https://github.com/deepspeedai/DeepSpeed/pull/8148
    (0.19.3).
Retire: when DeepSpeed 0.19.2 is no longer supported here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

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
        ),
    ),
    symptom=rf"CheckpointError[\s\S]*{_EMPTIED}",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/4332",
        "https://github.com/huggingface/transformers/issues/47254",
        "https://github.com/huggingface/trl/issues/2514",
        "https://github.com/huggingface/trl/issues/5217",
        "https://github.com/deepspeedai/DeepSpeed/pull/8130",
        "https://github.com/deepspeedai/DeepSpeed/pull/8148",
    ),
    fixed_in="0.19.3",
    present=(Source(_RELEASE, "param.ds_id in params_to_release and not param.is_external_param"),),
    fixed=(
        Source(_RELEASE, "params_to_release.update(recompute_params)"),
        # the form first proposed upstream, in use as a hand edit
        Source(_RELEASE, "torch._C._current_graph_task_id() != -1"),
    ),
)

_STEPS = 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.reference import largest_difference

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
    difference = largest_difference(recomputed_parameters, parameters)
    assert difference.absolute == 0.0, f"after {_STEPS} steps {difference}"
    return f"{_STEPS} steps with losses and parameters bit-equal to those without checkpointing"


def _train(lab: Lab, checkpointing: str | None) -> tuple[list[float], dict[str, Any]]:
    torch = lab.torch
    from dsfix.lab.models import Transformer, token_batch

    model = Transformer(checkpointing=checkpointing)
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
        tokens, targets = token_batch(rank=0, step=step)
        logits = engine(tokens.to(lab.device))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.to(lab.device).flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses, lab.parameters(engine)
