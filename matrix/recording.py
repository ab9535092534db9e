"""Where cells are recorded; several runners may write at the same time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsfix.catalogue.registry import Entry
from matrix import proofs
from matrix.proofs import Cell


def column(environment: str, gpu: str, entry: Entry) -> str:
    """The column of the patch's cells: the environment, and the GPU if the reproduction uses one."""
    return f"{environment} on {gpu}" if gpu and entry.patch.device == "cuda" else environment


def store(entry: Entry, column: str, release: str, cell: Cell, directory: Path = proofs.DIRECTORY) -> None:
    """Add one cell to the patch's record. Cells of an earlier version of the patch are kept and marked."""
    directory.mkdir(exist_ok=True)
    with _locked(directory):
        record = proofs.load(entry, directory)
        record.cells.setdefault(column, {})[release] = cell
        proofs.save(record, directory)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
