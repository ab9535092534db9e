"""The area of a patch that has no row in the table: the folder that it lies in, as the table calls it."""

from __future__ import annotations

from ..catalogue.registry import Entry

_CALLED = {
    "imports": "import",
    "tensor_parallel": "tensor-parallel",
    "zero12": "zero-1/2",
    "zero3": "zero-3",
    "zeropp": "zero++",
}


def of(entry: Entry) -> str:
    return _CALLED.get(entry.area, entry.area)
