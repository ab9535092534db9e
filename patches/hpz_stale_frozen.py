"""ZeRO++ hpZ: after load_checkpoint frozen parameters are those of before.

Why: with `zero_hpz_partition_size` a second copy of each parameter is spread over the ranks of a node, and as long as
    it is there the parameters are gathered from it. `load_checkpoint` writes the first copy. The second copies of
    trained parameters are dropped then (to 0.18.2: by hpz_stale_secondary) or by the next step; those of frozen ones,
    made from what the script gave the model, are never dropped. With a frozen part (the base model under LoRA) that
    was not the checkpoint's from the start, the model computes with a mixture, in all steps and in each evaluation.
    Parameters below `stage3_param_persistence_threshold` are not concerned. Nothing fails.
How: loading drops the second copies of frozen parameters, too; the next forward pass makes them anew. So does saving:
    one more gathering between nodes. One that was quantized (`zero_quantized_nontrainable_weights`) stays as it is.
Changes: jobs with hpZ that load a checkpoint whose frozen part is not what the model began with compute with the loaded
    one. A checkpoint written without the patch holds the loaded frozen parameters, but the rest was trained beside
    others: what was trained since such a load is to be repeated. Where the frozen part was the same nothing changes.
Upstream: not fixed in 0.19.8, and not known to be reported; brought by
    https://github.com/deepspeedai/DeepSpeed/pull/4906 (0.13.2). Those of trained parameters are dropped since
    https://github.com/deepspeedai/DeepSpeed/pull/7707 (0.18.3).
Retire: when DeepSpeed 0.19.8 is no longer supported here, if a release after it drops them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EPILOGUE = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.checkpoint_event_epilogue"


def drop_copies(model: Any) -> None:
    """Drop the second copies of frozen parameters, but for those that are quantized."""
    for parameter in model.parameters():
        copy = getattr(parameter, "ds_secondary_tensor", None)
        if copy is not None and not parameter.requires_grad and not hasattr(copy, "ds_quant_scale"):
            parameter.ds_secondary_tensor = None


PATCH = Patch(
    title="ZeRO++ hpZ: after load_checkpoint frozen parameters are those of before",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.2"},
    changes=(
        Edit(
            _EPILOGUE,
            after="if len(self.persistent_parameters) > 0:\n    ...",
            code=f"from {__name__} import drop_copies\ndrop_copies(self.module)",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/4906",
        "https://github.com/deepspeedai/DeepSpeed/pull/7707",
    ),
    fixed_in=None,
    # before, the second copies were for backward passes, and made anew by each forward pass
    present=(
        Source(
            "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload.pre_sub_module_forward_function",
            "param_coordinator.fetch_sub_module(sub_module, forward=True)",
        ),
    ),
    ranks=2,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # to 0.15.4 with torch >= 2.6; the file is our own
    torch = lab.torch
    from packaging.version import Version

    if Version(lab.deepspeed.__version__) < Version("0.13.0"):
        raise CannotTell("to 0.12.6 hpZ fails beside this torch: Group rank 2 is not part of group")
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    batches = [regression_batch(rank, step=0) for rank in range(2)]
    inputs, targets = (tensor.to(lab.device) for tensor in batches[lab.rank])

    def model_of(seed: int, frozen: int) -> Any:
        """Its weights are of `seed`, those of the frozen layer of `frozen`."""
        model: Any = MLP(seed=seed)
        other: Any = MLP(seed=frozen)
        model.blocks[0][0].load_state_dict(other.blocks[0][0].state_dict())
        for parameter in model.blocks[0][0].parameters():
            parameter.requires_grad_(False)
        return model

    config = {
        "train_batch_size": 2 * len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0},
    }

    def engine_of(model: Any) -> Any:
        return lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])

    engine_of(model_of(0, frozen=0)).save_checkpoint(str(lab.tmp), tag="saved")
    engine = engine_of(model_of(1, frozen=1))
    engine.load_checkpoint(str(lab.tmp), tag="saved")

    right, mixed = (model_of(0, frozen).loss(*batches[lab.rank]).item() for frozen in (0, 1))
    loss = torch.nn.functional.mse_loss(engine(inputs), targets)
    if abs(loss.item() - mixed) < 1e-5 < abs(loss.item() - right):
        raise BugPresent(
            f"after load_checkpoint the loss is {mixed:.4f}, by old frozen weights; it should be {right:.4f}"
        )
    assert abs(loss.item() - right) < 1e-5, f"after load_checkpoint the loss is {loss.item()}, not {right}"
    engine.backward(loss)
    engine.step()
    model = model_of(0, frozen=0)
    expected = train(model, [batches], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    difference = largest_difference(lab.parameters(engine), expected)
    assert difference.relative < 1e-4, f"after a step {difference}"
    return (
        f"after load_checkpoint the loss is {right:.4f}, and a step is plain PyTorch's within {difference.relative:.1e}"
    )
