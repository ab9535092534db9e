"""UlyssesSPDataLoaderAdapter: from the second epoch on there are no batches, and nothing is trained.

Why: through 0.17.4 the adapter creates one iterator over its DataLoader, when it is created itself. The first epoch
    exhausts it, and each further one ends at once, without an error: a job of three epochs trains one.
How: when the DataLoader has ended, the next epoch iterates over it again. Unlike in upstream's fix, the new iterator is
    made with the first batch of that epoch, so that a `set_epoch` before it takes effect and no workers start
    needlessly.
Changes: jobs of several epochs with the adapter train all of them, also when they resume from a
    checkpoint. The first epoch does not change.
Workaround: Before each epoch, scripts create a new adapter or set its `iter` to `iter(adapter.dl)`. You can keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ADAPTER = "deepspeed.runtime.sequence_parallel.ulysses_sp:UlyssesSPDataLoaderAdapter"


def again(loader: Any) -> Iterator[Any]:
    """An iterator over the loader that begins with the first batch that is asked of it."""
    took_effect(__name__, "a further epoch had its batches (unpatched: none)")
    yield from loader


PATCH = Patch(
    title="UlyssesSPDataLoaderAdapter has no batches from the second epoch on",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.0,<0.17.5"},
    changes=(
        Edit(
            f"{_ADAPTER}.refill",
            replace="batch = next(self.iter)",
            code="try:\n    batch = next(self.iter)\nexcept StopIteration:\n    self.iter = again(self.dl)\n    raise",
            uses=(again,),
        ),
    ),
    upstream={
        "https://github.com/snowflakedb/ArcticTraining/issues/254": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7472": "fixed in 0.17.5",
    },
    fixed_in="0.17.5",
    fixed=(Source(f"{_ADAPTER}.refill", "self.iter = iter(self.dl)"),),
    device="cpu",
)

_BATCHES, _LENGTH, _EPOCHS = 3, 8, 3


class _OneRank:
    """The collectives of one rank: gloo refuses to gather a number into a vector of one element, which NCCL accepts."""

    @staticmethod
    def all_gather(gathered: Any, tensor: Any, group: Any) -> None:
        gathered[0].copy_(tensor)


def reproduce(lab: Lab) -> str:
    import importlib

    torch = lab.torch
    try:
        module = importlib.import_module(f"{lab.deepspeed.__name__}.runtime.sequence_parallel.ulysses_sp")
    except ImportError as error:
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no UlyssesSPDataLoaderAdapter") from error
    module.dist = _OneRank  # type: ignore[attr-defined]
    tokens = torch.arange(_BATCHES * _LENGTH).view(_BATCHES, _LENGTH)
    data = [{"input_ids": each, "labels": each, "position_ids": torch.arange(_LENGTH)} for each in tokens]
    loader = torch.utils.data.DataLoader(data, batch_size=1)
    adapter = module.UlyssesSPDataLoaderAdapter(loader, 0, None, 1, lab.device)
    epochs = [[batch["input_ids"] for batch in adapter] for _ in range(_EPOCHS)]
    lengths = [len(epoch) for epoch in epochs]
    if lengths == [_BATCHES] + [0] * (_EPOCHS - 1):
        raise BugPresent(f"the batches of {_EPOCHS} epochs: {lengths}")
    if lengths != [_BATCHES] * _EPOCHS or any(not torch.equal(torch.cat(epoch), tokens) for epoch in epochs):
        raise AssertionError(f"the batches of {_EPOCHS} epochs: {lengths}, or their content is wrong")
    return f"each of {_EPOCHS} epochs has the {_BATCHES} batches of the DataLoader"
