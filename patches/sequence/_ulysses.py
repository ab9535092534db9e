"""Attention over a sequence that two ranks share, by Ulysses' DistributedAttention. Importing this imports torch."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from dsfix.patch import CannotTell

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LENGTH, _HEADS, _SIZE = 8, 8, 4
_NAMES = ("output", "gradient of the queries", "gradient of the keys", "gradient of the values")


def layout(sequence: int, samples: int) -> str:
    """sequence: the dimension of the positions, 0 or 1; the other one is that of the samples."""
    return f"{'batch' if sequence else 'sequence'}-first with {samples} {'samples' if samples > 1 else 'sample'}"


def overlaps(lab: Lab) -> bool:
    """Whether the release's DistributedAttention takes a stream for communication."""
    layer = _layer(lab)
    return "sp_stream" in inspect.signature(layer.DistributedAttention.__init__).parameters


def _layer(lab: Lab) -> Any:
    version = lab.deepspeed.__version__
    try:
        from deepspeed.sequence import layer
    except ImportError:
        raise CannotTell(f"deepspeed {version} has no sequence parallelism") from None
    return layer


def attend(lab: Lab, sequence: int, samples: int, stream: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """This rank's part of the output and of the gradients, and what it should be: attention to the whole sequence.

    stream: for communication, with which computations overlap.
    """
    layer = _layer(lab)

    def local(*inputs: Any) -> Any:
        query, key, value = (each.transpose(0, 1 - sequence).transpose(1, 2) for each in inputs)
        output = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return output.transpose(1, 2).transpose(0, 1 - sequence)

    distributed = layer.DistributedAttention(
        local, torch.distributed.group.WORLD, 2, sequence, *([stream] if stream else [])
    )
    asks = "batch_dim_idx" in inspect.signature(distributed.forward).parameters  # since 0.14.5
    more = {"batch_dim_idx": 1 - sequence} if asks else {}

    generator = torch.Generator().manual_seed(0)
    shape = [samples, _LENGTH] if sequence else [_LENGTH, samples]
    whole = [torch.randn(*shape, _HEADS, _SIZE, generator=generator) for _ in range(4)]
    parts = [each.chunk(2, sequence)[lab.rank].to(lab.device) for each in whole]
    right = [each.chunk(2, sequence)[lab.rank] for each in _run(local, whole)]
    return dict(zip(_NAMES, _run(distributed, parts, **more))), dict(zip(_NAMES, right))


def _run(attention: Any, tensors: list[Any], **more: Any) -> list[Any]:
    """The output, and the gradients of the first three tensors for the fourth."""
    inputs = [each.clone().requires_grad_() for each in tensors[:3]]
    # with a stream, DeepSpeed looks for two operations before its own
    computed = [(each * 1).view_as(each) for each in inputs]
    output = attention(*computed, **more).reshape(tensors[3].shape)
    return [output.detach(), *torch.autograd.grad((output * tensors[3]).sum(), inputs)]


class OneSequence:
    """The `mpu` of a job whose ranks all share each sequence: one replica of the data, one of the model."""

    def __init__(self, lab: Lab) -> None:
        _ = lab.deepspeed  # the process group
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._whole = torch.distributed.new_group(list(range(size)))
        alone = [torch.distributed.new_group([each]) for each in range(size)]
        self._alone = alone[rank]
        self._rank, self._size = rank, size

    def get_data_parallel_group(self) -> Any:
        return self._alone

    def get_data_parallel_rank(self) -> int:
        return 0

    def get_data_parallel_world_size(self) -> int:
        return 1

    get_model_parallel_group = get_tensor_model_parallel_group = get_data_parallel_group
    get_model_parallel_rank = get_tensor_model_parallel_rank = get_data_parallel_rank
    get_model_parallel_world_size = get_tensor_model_parallel_world_size = get_data_parallel_world_size

    def get_sequence_parallel_group(self) -> Any:
        return self._whole

    def get_sequence_parallel_rank(self) -> int:
        return self._rank

    def get_sequence_parallel_world_size(self) -> int:
        return self._size

    get_sequence_data_parallel_group = get_sequence_parallel_group
    get_sequence_data_parallel_rank = get_sequence_parallel_rank
    get_sequence_data_parallel_world_size = get_sequence_parallel_world_size
