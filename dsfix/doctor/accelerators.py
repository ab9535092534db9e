"""The NVIDIA driver and GPUs, from nvidia-smi and /proc; CUDA is not initialised."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .files import names, text
from .programs import ProgramOutput, run_program

_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total", "memory.used", "compute_cap")
_OLD_FIELDS = _FIELDS[:-1]  # drivers before 510 do not support compute_cap
_WSL = "/usr/lib/wsl/lib/nvidia-smi"


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in MiB, `capability` like "9.0", "" if the driver does not report it."""

    index: int
    name: str
    uuid: str
    memory: int | None
    used: int | None
    capability: str = ""


@dataclass(frozen=True)
class Accelerators:
    """The GPUs and their driver.

    `complaint`: why nvidia-smi lists no GPU, in its own words; "" if it lists some or is not installed.
    `kernel_module`: the version of the loaded kernel module. `devices`: the NVIDIA device nodes. `others`: device nodes
    of other vendors.
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
        """Whether an NVIDIA GPU is visible to this process, usable or not."""
        return bool(self.gpus or self.devices)


def collect(root: Path, environment: Mapping[str, str], seconds: float) -> Accelerators:
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
    answer = _query(program, _FIELDS, seconds)
    if not answer.problem and "compute_cap" in answer.output + answer.errors:
        answer = _query(program, _OLD_FIELDS, seconds)
    return parse(answer)


def _query(program: str, fields: tuple[str, ...], seconds: float) -> ProgramOutput:
    return run_program([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], seconds)


def parse(answer: ProgramOutput) -> tuple[str, tuple[Gpu, ...], str]:
    """Parses nvidia-smi's output; its first line is the complaint if it lists no GPU."""
    driver, gpus = "", []
    for row in csv.reader(answer.output.replace("\0", "").splitlines(), skipinitialspace=True):
        if len(row) >= len(_OLD_FIELDS) and row[0].strip().isdecimal():
            cells = [cell.strip() for cell in row] + [""]
            capability = cells[6] if re.fullmatch(r"\d+\.\d+", cells[6]) else ""
            gpus.append(Gpu(int(cells[0]), cells[1], cells[2], _mib(cells[4]), _mib(cells[5]), capability))
            driver = cells[3]
    if gpus:
        return driver, tuple(gpus), ""
    return "", (), answer.problem or answer.first_line or "nvidia-smi prints nothing"


def _mib(cell: str) -> int | None:
    return int(cell) if cell.isdecimal() else None


def kernel_module(root: Path) -> str:
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text(root / "proc/driver/nvidia/version"))
    return match[1] if match else ""


def _nodes(root: Path, pattern: str) -> tuple[str, ...]:
    nodes = [(directory, name) for directory in ("dev", "dev/accel") for name in names(root / directory)]
    return tuple(sorted(f"/{directory}/{name}" for directory, name in nodes if re.fullmatch(pattern, name)))


def visible(value: str | None, gpus: tuple[Gpu, ...]) -> tuple[list[Gpu], str]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES shows, and the invalid entry at which CUDA stops reading, or "".

    Source: https://docs.nvidia.com/cuda/archive/13.4.3/cuda-programming-guide/05-appendices/environment-variables.html
    """
    if value is None:
        return list(gpus), ""
    visible_gpus: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",") if value.strip()):
        named = [
            gpu for gpu in gpus if entry == str(gpu.index) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))
        ]
        if entry.startswith("MIG-"):  # nvidia-smi's query does not report the GPU of a MIG instance
            return list(gpus), ""
        if len(named) != 1:
            return visible_gpus, entry
        visible_gpus += named
    return visible_gpus, ""
