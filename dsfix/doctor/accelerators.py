"""The NVIDIA driver and its GPUs, by nvidia-smi and /proc; nothing here initialises CUDA."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .files import text
from .programs import Answer, ask

_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total", "memory.used", "compute_cap")
_OLD_FIELDS = _FIELDS[:-1]  # drivers before 510 do not know compute_cap
_WSL = "/usr/lib/wsl/lib/nvidia-smi"


@dataclass(frozen=True)
class Gpu:
    """Memory in MiB; `capability` like "9.0", "" where the driver does not tell."""

    index: int
    name: str
    uuid: str
    memory: int | None
    used: int | None
    capability: str = ""


@dataclass(frozen=True)
class Accelerators:
    """`complaint`: why nvidia-smi named no GPU, in its own words, "" where it did or is not there.

    `kernel_module`: the version of the driver's part in the kernel. `devices`: the device nodes.
    `others`: what there is of other makers, by device node.
    """

    nvidia_smi: str = ""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    complaint: str = ""
    kernel_module: str = ""
    devices: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def present(self) -> bool:
        """Whether this process is shown an NVIDIA GPU, usable or not."""
        return bool(self.gpus or self.devices)


def look(root: Path, environment: Mapping[str, str], seconds: float) -> Accelerators:
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None and os.access(_WSL, os.X_OK):
        program = _WSL
    driver, gpus, complaint = query(program, seconds) if program else ("", (), "")
    return Accelerators(
        nvidia_smi=program or "",
        driver=driver or kernel_module(root),
        gpus=gpus,
        complaint=complaint,
        kernel_module=kernel_module(root),
        devices=_nodes(root, r"nvidia\d+"),
        others=_nodes(root, r"kfd|accel\d+|davinci\d+"),
    )


def query(program: str, seconds: float) -> tuple[str, tuple[Gpu, ...], str]:
    """Driver version, GPUs, and the complaint where there are none."""
    answer = _query(program, _FIELDS, seconds)
    if not answer.problem and "compute_cap" in answer.output + answer.errors:
        answer = _query(program, _OLD_FIELDS, seconds)
    return parse(answer)


def _query(program: str, fields: tuple[str, ...], seconds: float) -> Answer:
    return ask([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], seconds)


def parse(answer: Answer) -> tuple[str, tuple[Gpu, ...], str]:
    """What nvidia-smi's answer amounts to; its first line is the complaint where it names no GPU."""
    driver, gpus = "", []
    for row in csv.reader(answer.output.replace("\0", "").splitlines(), skipinitialspace=True):
        if len(row) >= len(_OLD_FIELDS) and row[0].strip().isdecimal():
            cells = [cell.strip() for cell in row] + [""]
            capability = cells[6] if re.fullmatch(r"\d+\.\d+", cells[6]) else ""
            gpus.append(Gpu(int(cells[0]), cells[1], cells[2], _mib(cells[4]), _mib(cells[5]), capability))
            driver = cells[3]
    if gpus:
        return driver, tuple(gpus), ""
    return "", (), answer.problem or answer.said or "nvidia-smi says nothing"


def _mib(cell: str) -> int | None:
    return int(cell) if cell.isdecimal() else None


def kernel_module(root: Path) -> str:
    """The version of the loaded NVIDIA kernel module, "" where there is none."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text(root / "proc/driver/nvidia/version"))
    return found[1] if found else ""


def _nodes(root: Path, pattern: str) -> tuple[str, ...]:
    found = []
    for directory in ("dev", "dev/accel"):
        try:
            names = os.listdir(root / directory)
        except OSError:
            continue
        found += [f"/{directory}/{name}" for name in names if re.fullmatch(pattern, name)]
    return tuple(sorted(found))


def visible(value: str | None, gpus: tuple[Gpu, ...]) -> tuple[list[Gpu], str]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, and the entry at which CUDA stops reading, "" for none.

    Source: https://docs.nvidia.com/cuda/archive/13.4.3/cuda-programming-guide/05-appendices/environment-variables.html
    """
    if value is None:
        return list(gpus), ""
    seen: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",") if value.strip()):
        named = [
            gpu for gpu in gpus if entry == str(gpu.index) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))
        ]
        if entry.startswith("MIG-"):  # which GPU it is on, nvidia-smi's query does not tell
            return list(gpus), ""
        if len(named) != 1:
            return seen, entry
        seen += named
    return seen, ""
