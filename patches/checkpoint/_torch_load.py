"""torch.load as before torch 2.6, for patches of several files that DeepSpeed reads."""

from __future__ import annotations

from typing import Any, Callable


def load_whole(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """load: torch.load, or what a script has put in its place.

    That is called as DeepSpeed calls it, since it may pass `weights_only` itself, or take an argument that it does not
    expect for a file that it cannot read; with `weights_only` only if torch refuses the file otherwise.
    """
    if getattr(load, "__globals__", {}).get("__name__") == "torch.serialization":
        return load(*args, **kwargs, weights_only=False)
    try:
        return load(*args, **kwargs)
    except Exception as error:
        if "Weights only load failed" not in str(error):
            raise
        refused = error
    try:
        return load(*args, **kwargs, weights_only=False)
    except TypeError as error:
        if "weights_only" in str(error):  # a function that does not know it
            raise refused from None
        raise
