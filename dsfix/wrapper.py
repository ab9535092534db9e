"""The wrapper that the verb Wrap puts around a function."""

from __future__ import annotations

from typing import Any

import wrapt


class PicklableWrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg,unused-ignore]
    """A FunctionWrapper that is pickled by its name, as the function that it stands for is."""

    def __reduce_ex__(self, protocol: Any) -> str:
        return str(self.__wrapped__.__qualname__)
