"""`import deepspeed` sets multiprocessing's start method to "spawn" for the whole process.

Why: 0.17.1 imports the engine of decoupled checkpoints with DeepSpeed. Its module sets the start method, with force,
    for the process that it starts. From then on each DataLoader with workers, Pool and Process of the job is spawned:
    workers import the script again, a dataset or collate function that cannot be pickled (a lambda, a local class)
    fails with "Can't pickle", a script without ``if __name__ == "__main__"`` fails or runs itself again, and the
    script's own `set_start_method` raises "context has already been set".
How: once the module has been imported, the start method is what it was before, or unset; decoupled checkpoints start
    their process from a separate context, with "spawn" as before. Where dsfix is imported after DeepSpeed, the start
    method stays as it is.
Workaround: Scripts call `multiprocessing.set_start_method("fork", force=True)` after the import. You can keep it.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Patch, Provide, Replace, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EARLIER = "deepspeed.constants"
_ENGINE = "deepspeed.runtime.checkpoint_engine.decoupled_checkpoint_engine"
_NAME = "_restore_start_method"


def restorer(module: Any) -> Any:
    """A function that sets the start method that is set now, or unsets it."""
    import multiprocessing

    method = multiprocessing.get_start_method(allow_none=True)
    return functools.partial(multiprocessing.set_start_method, method, force=True)


def spawn_context(torch_multiprocessing: Any) -> Any:
    """Sets the start method as it was before DeepSpeed was imported; returns a context that spawns."""
    getattr(sys.modules.get(_EARLIER), _NAME, bool)()
    return torch_multiprocessing.get_context("spawn")


PATCH = Patch(
    title='import deepspeed sets multiprocessing\'s start method to "spawn": DataLoader workers fail or start slowly',
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.1,<0.17.2"},
    changes=(Provide(_EARLIER, _NAME, restorer), Replace(f"{_ENGINE}:mp", spawn_context)),
    symptom=r"dataloader\.py.*\n(.*\n){1,20}?.*popen_spawn_posix\.py.*\n"
    r"(.*\n){1,20}?.*Can't (pickle|get) local object",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7347": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7349": "fixed in 0.17.2",
    },
    fixed_in="0.17.2",
    present=(Source(_ENGINE, "mp.set_start_method('spawn', force=True)"),),
    fixed=(Source(f"{_ENGINE}:DecoupledCheckpointEngine.__init__", "mp.set_start_method('spawn')"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    import multiprocessing

    torch = lab.torch
    before = multiprocessing.get_start_method(allow_none=True)
    _ = lab.deepspeed
    after = multiprocessing.get_start_method(allow_none=True)
    inputs = [torch.full((1,), float(each)) for each in range(4)]
    loader = torch.utils.data.DataLoader(inputs, batch_size=2, num_workers=1, collate_fn=lambda batch: sum(batch))
    try:
        batches = [float(batch) for batch in loader]
    except Exception as error:  # PicklingError, or AttributeError before Python 3.12
        if after == "spawn" != before and "pickle" in str(error):
            raise BugPresent(f"import deepspeed sets the start method spawn; a DataLoader's worker: {error}") from error
        raise
    assert after == before, f"the start method was {before} and is {after}"
    assert batches == [1.0, 5.0], batches
    return f"the start method is {after or 'unset'}, as before the import, and a DataLoader's worker starts"
