"""TiledLoss: the gradient does not belong to the loss if tiles have different numbers of labels.

Why: TiledLoss returns the mean over all tokens that have a label, by weighting each tile's mean with the tile's number
    of labels. Its backward pass gives all tiles the same weight: tokens in a tile with few labels, such as one that is
    mostly prompt or padding, count more than those in a full one, and tiles without any label take a share as well.
    The loss that is logged is right.
How: each tile's gradient is weighted by its number of labels. Nothing changes where all tiles have the same number.
Changes: jobs that call TiledLoss, or UlyssesSPFwdLossBwdWithLogits with several tiles, and mask labels with -100. A
    checkpoint written without the patch loads, and training continues with the loss's own gradient.
Workaround: Scripts use one tile, or TiledFusedLogitsLoss with the reduction "sum" and a loss function that divides by
    the number of labels of all tiles. You can keep it. A hook or loss function that itself weights each tile's gradient
    by its labels must be removed: it would be weighted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.sequence_parallel.ulysses_sp"
_BACKWARD = f"{_MODULE}:TiledLoss.backward"
_OF_TILE = """
with torch.enable_grad():
    if all((shift_labels_shard == -100).squeeze()):
        loss_shard = (logits_shard.sum() * 0.0).float()
    else:
        loss_shard = loss_fn(
            logits=logits_shard.requires_grad_(),
            labels=None,
            vocab_size=vocab_size,
            shift_labels=shift_labels_shard,
        )
torch.autograd.backward(loss_shard, grad)
"""


def weight_of_tile(labels: Any, all_labels: Any, tiles: int) -> Any:
    """The tile's share of the labels, times the number of tiles: 1 where each tile has as many."""
    if tiles > 1:
        ran(__name__)  # the labels are on the device
    with_label = ((labels != -100).sum() * tiles).float()  # the default type may be bfloat16, which has few digits
    return with_label / (all_labels != -100).sum().clamp(min=1)


PATCH = Patch(
    title="TiledLoss: wrong gradients if tiles have different numbers of unmasked labels",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.0,<0.19.8"},
    changes=(
        Edit(
            _BACKWARD,
            replace="torch.autograd.backward(loss_shard, grad)",
            code="torch.autograd.backward(loss_shard, grad * weight_of_tile(shift_labels_shard, shift_labels, shards))",
            uses=(weight_of_tile,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7268": "introduced in 0.17.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/8587": "fixed in 0.19.8, which has no TiledLoss any more",
    },
    fixed_in="0.19.8",
    # not corrected in another place
    present=(
        Source(_BACKWARD, "grad = grads[0]"),
        Source(_BACKWARD, _OF_TILE),
        Source(_BACKWARD, "logits_grad /= shards"),
    ),
    # 0.19.8 has no TiledLoss: something else that it has, and no release before it
    fixed=(
        Source(
            f"{_MODULE}:UlyssesSPAttentionHF.register_with_transformers",
            'model_was_loaded = hasattr(model_name_or_path, "config") or '
            "isinstance(model_name_or_path, PreTrainedModel)",
        ),
    ),
)

_LENGTH, _WORDS, _TILES = 8, 6, 2
_LEARNING_RATE, _STEPS = 0.5, 3


def reproduce(lab: Lab) -> str:
    torch, reference = lab.torch, lab.reference
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import (
            TiledLoss,
        )
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no TiledLoss") from None

    def mean(logits: Any, labels: Any, vocab_size: int, shift_labels: Any) -> Any:
        """As a model's `loss_function`."""
        return torch.nn.functional.cross_entropy(logits.float().view(-1, vocab_size), shift_labels.reshape(-1))

    def unweighted(logits: Any, labels: Any) -> Any:
        tiles = zip(logits.chunk(_TILES, 1), labels.chunk(_TILES, 1))
        return sum(mean(part, None, _WORDS, of) for part, of in tiles) / _TILES

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, loss: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head, self.loss = torch.nn.Linear(16, _WORDS), loss

        def forward(self, inputs: Any, labels: Any) -> Any:
            return self.loss(self.head(inputs), labels)

    generator = torch.Generator().manual_seed(0)

    def batch(prompt: int) -> tuple[Any, Any]:
        labels = torch.randint(_WORDS, (1, _LENGTH), generator=generator)
        labels[:, :prompt] = -100
        return torch.randn(1, _LENGTH, 16, generator=generator), labels

    def tiled(logits: Any, labels: Any) -> Any:
        return TiledLoss.apply(mean, logits, _WORDS, labels, _TILES)

    def train(prompt: int) -> str:
        batches = [batch(prompt) for _ in range(_STEPS)]
        steps = [[each] for each in batches]
        right, wrong = (
            reference.train(model, steps, model, "SGD", lr=_LEARNING_RATE).parameters
            for model in (Model(lambda logits, labels: mean(logits, None, _WORDS, labels)), Model(unweighted))
        )
        model = Model(tiled)
        config = {"optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}}}
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for inputs, labels in batches:
            engine.backward(engine(inputs.to(lab.device), labels.to(lab.device)))
            engine.step()
        told: str = reference.compare(
            lab.parameters(engine),
            right,
            {"those of tiles of equal weight": wrong} if prompt else {},
            after=f"{prompt} of {_LENGTH} tokens without a label: after {_STEPS} steps",
        )
        return told

    return "; ".join(train(prompt) for prompt in (0, 3))
