"""The loss over a vocabulary of a sequence that two ranks share. Importing this imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from dsfix.lab import reference
from dsfix.patch import CannotTell

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LENGTH, _SAMPLES, _WIDTH, _WORDS = 8, 2, 16, 128

# the losses of the whole sequence, and the gradients of this rank's part
Found = tuple[Any, Any]


def ulysses(lab: Lab, ignored: bool = False, largest: float = 4) -> tuple[Found, Found, Any]:
    """vocab_sequence_parallel_cross_entropy, plain PyTorch, and which positions of this rank's have a label of -100.

    ignored: whether any have. largest: of the logits, about.
    """
    try:
        from deepspeed.sequence import cross_entropy  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise CannotTell(
            f"deepspeed {lab.deepspeed.__version__} has no vocab_sequence_parallel_cross_entropy"
        ) from None
    hidden, labels, weights = _words(ignored, largest)
    logits = hidden @ weights.t()
    gather = cross_entropy.dist.all_gather_into_tensor

    def flat(output: Any, tensor: Any, group: Any = None) -> Any:
        """gloo, unlike NCCL, compares the shapes, which differ."""
        return gather(output.view(-1), tensor.reshape(-1), group=group)

    _ = lab.deepspeed  # the process group
    part, of_part = _part(lab, logits), _part(lab, labels)
    cross_entropy.dist.all_gather_into_tensor = flat
    try:
        losses = cross_entropy.vocab_sequence_parallel_cross_entropy(
            part.requires_grad_(), of_part, torch.distributed.group.WORLD
        )
    finally:
        cross_entropy.dist.all_gather_into_tensor = gather
    losses.sum().backward()
    return (
        (losses.detach().cpu(), part.grad.cpu()),
        _plain(lab, logits, labels),
        (of_part == -100).cpu(),
    )


def compared(found: Found, right: Found) -> str:
    """found: the same as what is right, or AssertionError."""
    names = "losses", "gradients"
    difference = reference.largest_difference(dict(zip(names, found)), dict(zip(names, right)))
    assert difference.relative < 1e-5, difference
    return f"losses and gradients match cross_entropy's within {difference.relative:.1e}"


def _words(ignored: bool, largest: float) -> tuple[Any, Any, Any]:
    """Hidden states, labels, and the head's weights."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(_LENGTH, _SAMPLES, _WIDTH, generator=generator)
    labels = torch.randint(0, _WORDS, (_LENGTH, _SAMPLES), generator=generator)
    if ignored:
        labels[1, 0] = labels[-2:] = -100
    return hidden, labels, torch.randn(_WORDS, _WIDTH, generator=generator) * largest / 16


def _part(lab: Lab, whole: Any) -> Any:
    return whole.chunk(2)[lab.rank].to(lab.device)


def _plain(lab: Lab, logits: Any, labels: Any) -> Found:
    whole = logits.clone().requires_grad_()
    losses: Any = functional.cross_entropy(whole.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
    losses.sum().backward()
    return losses.detach(), whole.grad.chunk(2)[lab.rank]
