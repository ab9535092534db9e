"""A checkpoint's fp32 weights, exported with DeepSpeed's zero_to_fp32, as for publishing."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ZERO: Any = {"stage": "123"}


@scenario("the fp32 weights of a checkpoint are exported", pinned=[{"stage": "3"}, {"stage": "1"}], **_ZERO)
def exported(job: Job) -> None:
    _written_out(job, job.MLP())


@scenario(
    "the fp32 weights of a model that is half frozen are exported", pinned=[{"stage": "2"}, {"stage": "3"}], **_ZERO
)
def exported_frozen(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].requires_grad_(False)
    _written_out(job, model)


def _written_out(job: Job, model: Any) -> None:
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    if job.plain:
        written: Any = job.parameters(engine)
    else:
        job.torch.distributed.barrier()
        written = _converted(job) if job.rank == 0 else {}
    for name, weight in sorted(written.items()):
        job.note(f"written: {name}", weight)
    job.train(engine, 2)


def _converted(job: Job) -> dict[str, Any]:
    zero_to_fp32 = importlib.import_module("deepspeed.utils.zero_to_fp32")
    convert = zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict
    into_directory = "output_dir" in inspect.signature(convert).parameters
    out = job.tmp / "written"
    if into_directory:
        out.mkdir()
    with mock.patch.dict(sys.modules, huggingface_hub=_hub()):
        convert(str(job.tmp / "checkpoint"), str(out), tag="two")
    weights: dict[str, Any] = job.torch.load(out / "pytorch_model.bin" if into_directory else out)
    return weights


def _hub() -> ModuleType:
    """Replaces huggingface_hub, which zero_to_fp32 asks how to split the weights into files: all into one."""
    module = ModuleType("huggingface_hub")
    module.split_torch_state_dict_into_shards = (  # type: ignore[attr-defined]
        lambda weights, filename_pattern, **_: SimpleNamespace(
            is_sharded=False, filename_to_tensors={filename_pattern.format(suffix=""): list(weights)}
        )
    )
    return module
