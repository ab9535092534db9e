"""What torch or DeepSpeed report about themselves; `doctor` runs this in a separate process, from standard input.

The argument is "torch", "deepspeed", or "dsfix" for DeepSpeed after `import dsfix`. Prints one JSON line per part, with
the error if the part fails. If the process crashes or hangs, the lines show which part it had reached.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import warnings
from typing import Any


def torch_import() -> dict[str, Any]:
    import torch

    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return {
        "version": torch.__version__,
        "file": torch.__file__,
        "architectures": (flags() if flags and torch.version.cuda else None) or "",
    }


def torch_cuda() -> dict[str, Any]:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return {"available": False, "devices": 0, "warning": "", "nccl": ""}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available, devices = torch.cuda.is_available(), torch.cuda.device_count()
    expected = FutureWarning, DeprecationWarning
    messages = [str(each.message) for each in caught if not issubclass(each.category, expected)]
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {
        "available": available,
        "devices": devices,
        "warning": messages[0] if messages else "",
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def torch_cpp_extension() -> dict[str, Any]:
    from torch.utils import cpp_extension

    bounds = getattr(cpp_extension, "CUDA_GCC_VERSIONS", {})
    return {
        "cuda_home": cpp_extension.CUDA_HOME,
        "gcc_below": {cuda: ".".join(map(str, below)) for cuda, (_, below) in bounds.items()},
    }


def deepspeed_import() -> dict[str, Any]:
    if sys.argv[1] == "dsfix":
        importlib.import_module("dsfix")
    deepspeed = importlib.import_module("deepspeed")
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    return {"version": deepspeed.__version__, "file": deepspeed.__file__, "accelerator": accelerator._name}


def deepspeed_report() -> dict[str, Any]:
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        importlib.import_module("deepspeed.env_report").main()
    return {"text": written.getvalue()}


_DEEPSPEED = {"import": deepspeed_import, "report": deepspeed_report}
PARTS = {
    "torch": {"import": torch_import, "cuda": torch_cuda, "cpp_extension": torch_cpp_extension},
    "deepspeed": _DEEPSPEED,
    "dsfix": _DEEPSPEED,
}


def main() -> None:
    """Runs the parts in order; stops if the import fails."""
    answers = os.dup(1)
    os.dup2(2, 1)  # keeps other output apart from the answers
    for name, part in PARTS[sys.argv[1]].items():
        try:
            answer: dict[str, Any] = {"facts": part()}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(answers, (json.dumps({"part": name, **answer}, default=str) + "\n").encode())
        if name == "import" and "error" in answer:
            break
    os._exit(0)  # skips exit handlers, which may hang or crash


if __name__ == "__main__":
    main()
