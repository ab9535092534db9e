"""What DeepSpeed's tool writes into a universal checkpoint, from a checkpoint of few ranks, on any release."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

# what older releases expect of the script
_STATE = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}, "iteration": 1}


@scenario(
    "a checkpoint is converted into a universal one, whose files are read",
    pinned=[{"stage": "1", "optimizer": "AdamW", "ranks": "4"}],
    stage="12",
    ranks=("2", "4"),
    optimizer=("AdamW",),
)
def converted_to_universal(job: Job) -> None:
    nn = job.torch.nn
    job.torch.manual_seed(0)
    forward = lambda self, x: self.head(self.below(x).tanh()).mean(dim=1, keepdim=True)  # noqa: E731
    # as many elements as ranks share without padding, with which older releases cannot convert torch's optimizers
    engine = job.engine(job.model(forward, below=nn.Linear(16, 16), head=nn.Linear(16, 16)))
    for step in range(2):
        job.train(engine, step)
    with mock.patch.dict(os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1"):
        found = job.weights(engine) if job.plain else _converted(job, engine)
    for name, weight in sorted(found.items()):
        job.note(f"converted: {name}", weight)
    job.train(engine, 2)


def _converted(job: Job, engine: Any) -> dict[str, Any]:
    """The weights, on rank 0; the moments are noted as well."""
    folder = job.tmp / "checkpoint"
    engine.save_checkpoint(str(folder), tag="two", client_state=_STATE)
    job.torch.distributed.barrier()
    if job.rank:
        return {}
    for layer in range(1, 4):  # older releases know checkpoints of pipelines only
        job.torch.save({}, folder / "two" / f"layer_0{layer}-model_00-model_states.pt")
    tool: Any = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
    words = ["--input_folder", str(folder / "two"), "--output_folder", str(folder / "universal")]
    words += ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    # one worker is this process; in older releases it is another one, where nobody sees the patch's lines run
    older = mock.patch.object(tool.multiprocessing, "Pool", ThreadPool) if hasattr(tool, "multiprocessing") else None
    with mock.patch.object(sys, "argv", ["ds_to_universal.py", *words]), older or contextlib.nullcontext():
        tool.main(*[tool.parse_arguments()] * len(inspect.signature(tool.main).parameters))
    found = {}
    for path in sorted((folder / "universal" / "zero").glob("*/*.pt")):
        content = job.torch.load(path, map_location="cpu")
        part = content["param"] if isinstance(content, dict) else content
        if path.stem == "fp32":
            found[path.parent.name] = part
        else:
            job.bits(f"converted: {path.stem} of {path.parent.name}", part)
    return found
