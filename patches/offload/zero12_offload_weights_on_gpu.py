"""ZeRO-1/2 + optimizer offload: each step copies all fp32 weights of a group to the GPU at once: out of memory.

Why: from 0.14.1 on the updated weights are cast to half precision on the GPU, after a copy of this rank's whole fp32
    partition of the group: four more bytes per parameter, and more than the rest of the step needs.
How: the partition is copied in pieces of eight million numbers, 32 MB: cast on the GPU as before, over the same bus, to
    the same numbers. A smaller partition is copied at once, as before.
Workaround: None in the script; smaller parameter groups help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEP = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.step"
_PIECE = 1 << 23


def copy_in_pieces(target: Any, source: Any, device: Any) -> None:
    """target.copy_(source.to(device)) without room for all of the source there."""
    if target.numel() > _PIECE and target.device.type != source.device.type:
        took_effect(__name__, "fp32 weights were copied in pieces (unpatched: all %s at once)", target.numel())
    for start in range(0, target.numel(), _PIECE):
        size = min(_PIECE, target.numel() - start)
        target.narrow(0, start, size).copy_(source.narrow(0, start, size).to(device))


PATCH = Patch(
    title="ZeRO-1/2 + optimizer offload: each step copies the fp32 weights to the GPU: out of memory",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.14.1,<0.17.0"},
    changes=(
        Edit(
            _STEP,
            replace=(
                "bit16_partitions[partition_id].data.copy_("
                "fp32_partition.to(get_accelerator().current_device_name()).data)"
            ),
            code=(
                "copy_in_pieces(bit16_partitions[partition_id].data, fp32_partition.data, "
                "get_accelerator().current_device_name())"
            ),
            uses=(copy_in_pieces,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7309": "fixed in 0.17.0",
    },
    fixed_in="0.17.0",
    fixed=(Source(_STEP, "bit16_partition_buffer.data.copy_(fp32_partition.data)"),),
    config=lambda job: job.stage in (1, 2) and job.offloads_optimizer,
)

_WIDTH = 4096  # a weight of two pieces
_LEARNING_RATE = 0.5


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Model(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(_WIDTH, _WIDTH, bias=False)
            with torch.no_grad():
                self.weight.copy_(torch.arange(_WIDTH * _WIDTH).view(_WIDTH, _WIDTH).remainder(97) / 97 - 0.5)

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    }
    model = Model()
    start = model.weight.detach().clone()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    inputs = torch.arange(_WIDTH).remainder(13).view(1, _WIDTH).to(lab.device, torch.bfloat16) / 13
    # the gradient is the input in each row: exact in bf16
    engine.backward(engine(inputs).float().sum())
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine.step()
    more = torch.cuda.max_memory_allocated() - before
    weights = lab.parameters(engine)["weight"]
    right = (start.bfloat16().float() - _LEARNING_RATE * inputs.float().cpu()).bfloat16().float()
    whole = 4 * _WIDTH * _WIDTH
    if not torch.equal(weights, right):
        raise AssertionError(f"the weights differ by up to {(weights - right).abs().max().item():.3g}")
    if more >= whole:
        raise BugPresent(f"the step takes {more / 2**20:.0f} MB on the GPU; the fp32 weights are {whole / 2**20:.0f}")
    return f"the step takes {more / 2**20:.0f} MB on the GPU, of {whole / 2**20:.0f} MB of fp32 weights, and is right"
