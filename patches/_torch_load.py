"""torch.load as before torch 2.6, for patches of several files that DeepSpeed reads."""

from __future__ import annotations

from typing import Any, Callable


def load_whole(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """load: torch.load, or what a script has put in its place, which may pass `weights_only` itself, or not know it."""
    try:
        return load(*args, **kwargs, weights_only=False)
    except TypeError as error:
        if "weights_only" not in str(error):
            raise
    return load(*args, **kwargs)
