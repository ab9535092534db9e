"""A self-test of the loaded device, run once in each process."""

from __future__ import annotations

from typing import Any

import torch

_SENTENCE = "Expected all tensors to be on the same device"


def fault() -> str:
    """What the emulated device does wrong, in one clause, or "". Draws no random number and starts no thread."""
    try:
        return _fault()
    except (RuntimeError, AttributeError, TypeError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def _fault() -> str:
    host = torch.arange(6.0).view(2, 3)
    one = host.to("cuda")
    functions: dict[str, Any] = {
        "add": lambda t: t + t,
        "matmul": lambda t: t @ t.T,
        "layer_norm": lambda t: torch.nn.functional.layer_norm(t, (3,)),
        "foreach": lambda t: torch._foreach_mul([t], 2.0)[0],
        "cat": lambda t: torch.cat([t, t.bfloat16().float()]),
    }
    for name, function in functions.items():
        result = function(one)
        if result.device != one.device or not torch.equal(result.cpu(), function(host)):
            return f"{name} gives a different result than on the CPU"
    try:
        one + host
    except RuntimeError as error:
        if _SENTENCE not in str(error):
            return f"mixed devices raise {error}"
    else:
        return "mixed devices raise no error"
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call,unused-ignore]
    with torch.cuda.stream(stream):
        twice = one * 2
        if torch.cuda.current_stream() != stream:
            return "a stream does not become the current one"
    torch.cuda.current_stream().wait_stream(stream)
    return "" if torch.equal(twice.cpu(), host * 2) else "work on a stream gives a wrong result"
