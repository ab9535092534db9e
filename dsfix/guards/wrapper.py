"""The wrapper that the guards put around a function."""

from __future__ import annotations

from typing import Any

import wrapt


class _Bound(wrapt.BoundFunctionWrapper):  # type: ignore[misc, type-arg, unused-ignore]
    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)  # as the bound method itself: its object and its name


class PicklableWrapper(wrapt.FunctionWrapper):  # type: ignore[misc, type-arg, unused-ignore]
    """A FunctionWrapper that is copied and pickled as the function that it stands for is: itself, by its name."""

    __bound_function_wrapper__ = _Bound

    def __reduce_ex__(self, protocol: Any) -> str:
        return str(self.__wrapped__.__qualname__)

    def __copy__(self) -> PicklableWrapper:
        return self

    def __deepcopy__(self, memo: Any) -> PicklableWrapper:
        return self
