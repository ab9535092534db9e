"""ZeRO++ hpZ: after load_checkpoint the model still uses its previous frozen parameters.

Why: with `zero_hpz_partition_size` a second copy of each parameter is partitioned over the ranks of a node, and while
    it exists the parameters are gathered from it. `load_checkpoint` writes the first copy. The second copies of trained
    parameters are dropped then (through 0.18.2: by hpz_stale_secondary) or by the next step; those of frozen
    parameters, made from what the script gave the model, are never dropped. With a frozen part (the base model under
    LoRA) that differed from the checkpoint's at the start, the model computes with a mixture, in every step and every
    evaluation. Parameters below `stage3_param_persistence_threshold` are not affected. Nothing fails.
How: loading also drops the second copies of frozen parameters; the next forward pass makes them again. So does saving,
    which costs one more gathering between nodes. A quantized copy (`zero_quantized_nontrainable_weights`) stays as it
    is.
Changes: jobs with hpZ that load a checkpoint with another frozen part than the model began with compute with the loaded
    one. A checkpoint written without the patch contains the loaded frozen parameters, but the others were trained with
    different ones: repeat the training since such a load. Where the frozen part was the same, nothing changes.
Workaround: Scripts set `ds_secondary_tensor` of all parameters to None after loading. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EPILOGUE = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.checkpoint_event_epilogue"


def drop_copies(model: Any) -> None:
    """Drop the second copies of frozen parameters, except quantized ones."""
    for parameter in model.parameters():
        copy = getattr(parameter, "ds_secondary_tensor", None)
        if copy is not None and not parameter.requires_grad and not hasattr(copy, "ds_quant_scale"):
            ran(__name__)  # it may be a copy of what was loaded
            parameter.ds_secondary_tensor = None


PATCH = Patch(
    title="ZeRO++ hpZ: after load_checkpoint the model still uses its previous frozen parameters",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.2"},
    changes=(
        Edit(
            _EPILOGUE,
            after="if len(self.persistent_parameters) > 0:\n    ...",
            code="drop_copies(self.module)",
            uses=(drop_copies,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4906": "introduced in 0.13.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/7707": "related: drops those of trained parameters since 0.18.3",
    },
    # in earlier releases the second copies served backward passes, and each forward pass made them again
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
    from packaging.version import Version

    from ..checkpoint._checkpoints import load_whole_files

    lab.require_ranks(2)
    load_whole_files()
    torch, models, reference = lab.torch, lab.models, lab.reference
    if Version(lab.deepspeed.__version__) < Version("0.13.0"):
        raise CannotTell("through 0.12.6 hpZ fails with this torch: Group rank 2 is not part of group")
    batches = [models.regression_batch(rank, step=0) for rank in range(2)]
    inputs, targets = (tensor.to(lab.device) for tensor in batches[lab.rank])

    def model_of(seed: int, frozen: int) -> Any:
        """Weights from `seed`, those of the frozen layer from `frozen`."""
        model: Any = models.MLP(seed=seed)
        other: Any = models.MLP(seed=frozen)
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
            f"after load_checkpoint the loss is {mixed:.4f}, from the old frozen weights; it should be {right:.4f}"
        )
    assert abs(loss.item() - right) < 1e-5, f"after load_checkpoint expected the loss {right}, got {loss.item()}"
    engine.backward(loss)
    engine.step()
    model = model_of(0, frozen=0)
    expected = reference.train(model, [batches], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    after = f"after load_checkpoint the loss is {right:.4f}; after a step"
    return reference.compare(lab.parameters(engine), expected, after=after)
