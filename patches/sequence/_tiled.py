"""Autograd functions with another `apply`, which sees the caller's gradient mode and the weights."""

from __future__ import annotations

from typing import Any, Callable


def with_apply(original: Any, apply: Callable[..., Any]) -> Any:
    """A class like `original`, of whose functions `apply` alone differs; edits of the others hold for both."""
    body = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    body.update({name: vars(original)[name] for name in ("forward", "backward")})
    return type(original)(original.__name__, (original,), {**body, "apply": staticmethod(apply)})
