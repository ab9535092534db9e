"""The installed torch and GPU, detected without importing torch."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path


class LabUnavailable(Exception):
    """This machine or environment lacks something; the message names it in one sentence."""


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version, its package directory, the CUDA or ROCm version it was built for (or None)."""

    version: str
    directory: Path
    gpu: str | None


def torch_build() -> TorchBuild:
    """Reads the installed torch's version file. Raises LabUnavailable if torch or the file is missing."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise LabUnavailable("torch is not installed")
    directory = Path(spec.origin).parent
    try:
        text = (directory / "version.py").read_text(encoding="utf-8")
    except OSError:
        raise LabUnavailable(f"torch in {directory} has no version file") from None
    values = dict(re.findall(r"""^(\w+)(?::[^=\n]*)?\s*=\s*['"](.+)['"]""", text, re.MULTILINE))
    if "__version__" not in values:
        raise LabUnavailable(f"torch in {directory} has no version")
    return TorchBuild(values["__version__"], directory, values.get("cuda") or values.get("hip"))


def gpu_likely() -> bool:
    """Whether the installed torch was built for GPUs and one is visible. Raises LabUnavailable as `torch_build`."""
    return torch_build().gpu is not None and _gpu_visible()


def hide_triton() -> None:
    """Makes `import triton` fail from now on in this process; it would look for a GPU driver."""
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]


def _gpu_visible() -> bool:
    """Whether an NVIDIA device file (or that of WSL) exists and CUDA_VISIBLE_DEVICES does not hide it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return False
    return bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")
