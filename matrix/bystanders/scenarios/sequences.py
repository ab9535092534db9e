"""Ulysses' DistributedAttention: a sequence that two ranks share."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_HERE: Any = {
    **{"stage": "0", "precision": ("fp32",), "ranks": ("2",), "accumulation": ("1",), "clipping": ("off",)},
    "optimizer": ("SGD",),
}
_SAMPLES, _LENGTH, _HEADS, _SIZE = 2, 8, 4, 4


def _attend(job: Job, sequence: int, samples: int = _SAMPLES) -> tuple[list[Any], Any]:
    """Queries, keys and values, and the output: this rank's part, or in plain PyTorch the whole.

    sequence: the dimension of the positions, 0 or 1; the other one is that of the samples.
    """
    torch = job.torch

    def local(*inputs: Any) -> Any:
        query, key, value = (each.transpose(0, 1 - sequence).transpose(1, 2) for each in inputs)
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return output.transpose(1, 2).transpose(0, 1 - sequence)

    shape = (samples, _LENGTH) if sequence else (_LENGTH, samples)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*shape, _HEADS, _SIZE, generator=generator).to(job.device) for _ in range(3)]
    if job.plain:
        inputs = [each.requires_grad_() for each in inputs]
        return inputs, local(*inputs)
    assert job._lab.deepspeed
    inputs = [_part(job, each, sequence).clone().requires_grad_() for each in inputs]
    attention = importlib.import_module("deepspeed.sequence.layer").DistributedAttention(
        local, torch.distributed.group.WORLD, 2, sequence
    )
    asks = "batch_dim_idx" in inspect.signature(attention.forward).parameters
    output = attention(*inputs, **({"batch_dim_idx": 1 - sequence} if asks else {}))
    return inputs, output.reshape(inputs[0].shape)


def _part(job: Job, tensor: Any, sequence: int) -> Any:
    return tensor.chunk(2, sequence)[job.rank]


@scenario("Ulysses' attention, batch-first, and its gradients", **_HERE)
def sequence_batch_first(job: Job) -> None:
    inputs, output = _attend(job, 1)
    output.square().sum().backward()
    job.note("output", _part(job, output, 1) if job.plain else output)
    for name, each in zip(("queries", "keys", "values"), inputs):
        job.note(f"gradient of the {name}", _part(job, each.grad, 1) if job.plain else each.grad)


@scenario("Ulysses' attention of one sample, batch-first and sequence-first, and its gradients",
    works_around=("ulysses_attention_permuted",), **_HERE)  # fmt: skip
def sequence_of_one_sample(job: Job) -> None:
    for sequence, layout in enumerate(("sequence-first", "batch-first")):
        inputs, output = _attend(job, sequence, samples=1)
        output.square().sum().backward()
        job.note(f"{layout}: output", _part(job, output, sequence) if job.plain else output)
        for name, each in zip(("queries", "keys", "values"), inputs):
            gradient = _part(job, each.grad, sequence) if job.plain else each.grad
            job.note(f"{layout}: gradient of the {name}", gradient)


@scenario("Ulysses' attention, sequence-first, evaluated by a script that gives the output its shape",
    works_around=("ulysses_sequence_first_shape",), **_HERE)  # fmt: skip
def sequence_first_evaluated(job: Job) -> None:
    with job.torch.no_grad():
        _, output = _attend(job, 0)
    job.note("output", _part(job, output, 0) if job.plain else output)
