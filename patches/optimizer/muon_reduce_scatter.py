"""Muon with ZeRO-1/2 on several ranks: wrong updates for each matrix that two ranks share.

Why: Muon orthogonalizes a parameter's whole gradient. With `reduce_scatter`, the default, a rank has the mean over all
    ranks only for its own part of the parameters. From 0.17.6 to 0.19.2 a matrix that crosses the border of two parts
    is orthogonalized all the same, on each rank with the mean in its own rows and its own local gradient in the others:
    a different matrix on each rank, and the correct one on none. Nothing fails.
How: with Muon, gradients are reduced as with `"reduce_scatter": false`: every rank has the whole mean. The default path
    sends as much (it is an all-reduce, of which each rank keeps its part). As there, gradients are divided by the
    number of ranks before they are summed: a sum may exceed fp16. Optimizer offload and MoE are unchanged: with offload
    a rank has its own part in any case, and for experts other code rejects `"reduce_scatter": false`.
Changes: the updates of the matrices on a border (one per border and optimizer group). A checkpoint written without the
    patch can be resumed; the momentum of these matrices comes from wrong gradients and fades within some tens of steps.
Workaround: The config sets `"reduce_scatter": false`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"

PATCH = Patch(
    title="Muon + ZeRO-1/2: a matrix that two ranks share gets a wrong update",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.19.3"},
    changes=(
        Edit(
            f"{_OPTIMIZER}.__init__",
            replace="self.reduce_scatter = reduce_scatter",
            effect=RAN,  # whether ranks share a matrix is not known yet
            when="reduce_scatter and not self.cpu_offload and not has_moe_layers"
            " and 'muon' in self.optimizer.__class__.__name__.lower()",
            # DeepSpeed, too, recognises Muon by its name
            code="self.reduce_scatter = reduce_scatter and (\n"
            "    self.cpu_offload or has_moe_layers or 'muon' not in self.optimizer.__class__.__name__.lower()\n"
            ")",
        ),
        Edit(
            f"{_OPTIMIZER}.__init__",
            replace="self.postscale_gradients = postscale_gradients",
            code="self.postscale_gradients = postscale_gradients and self.reduce_scatter == reduce_scatter",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7807": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/8090": "related: rejects the combination (0.19.3)",
        "https://github.com/deepspeedai/DeepSpeed/pull/8141": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    present=(
        Source(
            f"{_OPTIMIZER}.get_flat_partition",
            "getattr(tensor, 'use_muon', False) and 'muon' in self.optimizer.__class__.__name__.lower()",
        ),
    ),
    fixed=(
        Source(f"{_OPTIMIZER}.average_tensor", "muon_copy_ranks or frozenset((partition_id, ))"),
        # builds between the two pull requests raise a ValueError
        Source(f"{_OPTIMIZER}.__init__", "isinstance(self.optimizer, MuonWithAuxAdam) and self.reduce_scatter"),
    ),
    ranks=2,
    config=lambda job: job.optimizer == "muon" and job.stage in (1, 2),
)

_LEARNING_RATE = 0.1
_WIDTH = 16
_HALF = _WIDTH // 2  # rank 0 has the upper rows of the only matrix, rank 1 the lower ones


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    deepspeed = lab.deepspeed
    from ..moe._experts import run_eagerly

    try:
        from deepspeed.runtime.zero.muon.original_muon import (
            muon_update,
        )
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no Muon") from None

    largest_difference = lab.reference.largest_difference
    run_eagerly()  # later releases compile the update
    batches = [[lab.models.regression_batch(rank, step, width=_WIDTH)[0] for step in range(2)] for rank in range(2)]
    torch.manual_seed(0)
    model = torch.nn.Linear(_WIDTH, _WIDTH, bias=False)
    before = model.weight.detach().clone()
    local = []
    for inputs, targets in batches:
        [gradient] = torch.autograd.grad(torch.nn.functional.mse_loss(model(inputs), targets), [model.weight])
        local.append(gradient / 2)

    def after(gradient: Any) -> Any:
        update = muon_update(gradient.clone(), torch.zeros_like(before), 0.95).to(before.dtype)
        return before - _LEARNING_RATE * update

    mean = local[0] + local[1]
    mixed = [torch.cat([mean[:_HALF], local[0][_HALF:]]), torch.cat([local[1][:_HALF], mean[_HALF:]])]
    right = {"weight": after(mean)}
    wrong = {"weight": torch.cat([after(mixed[0])[:_HALF], after(mixed[1])[_HALF:]])}

    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "Muon", "params": {"lr": _LEARNING_RATE, "momentum": 0.95, "weight_decay": 0.0}},
        "zero_optimization": {"stage": 2},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    inputs, targets = (tensor.to(lab.device) for tensor in batches[lab.rank])
    engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
    engine.step()

    parameters = lab.parameters(engine)
    difference = largest_difference(parameters, right)
    # the update is computed with 8 or 11 bits of precision
    if largest_difference(parameters, wrong).relative < 5e-3 < 5e-2 < difference.relative:
        raise BugPresent(f"after 1 step the update is that of half-reduced gradients: {difference}")
    assert difference.relative < 5e-3, f"after 1 step {difference}"
    return f"after 1 step the parameters match the mean gradient's update within {difference.relative:.1e}"
