"""`import deepspeed` fails with NumPy 2: cannot import name 'BUFSIZE'.

Why: DeepSpeed 0.5.7 to 0.14.3 import `BUFSIZE` from numpy for the files that its autotuner writes, whether or not the
    autotuner is used. NumPy 2.0.0 removed the name; 1.26.4 has it.
How: gives numpy the name again, with the value it always had, 8192.
Workaround: Scripts set `numpy.BUFSIZE = 8192` before the import, or the environment pins numpy below 2.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Patch, Provide, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SCHEDULER = "deepspeed.autotuning.scheduler"


def _bufsize(numpy: Any) -> int:
    return 8192


PATCH = Patch(
    title="import deepspeed fails with NumPy 2: cannot import name 'BUFSIZE'",
    severity=Severity.IMPORT,
    affects={"deepspeed": ">=0.12.0,<0.14.4", "numpy": ">=2.0.0.dev0"},
    changes=(Provide("numpy", "BUFSIZE", _bufsize),),
    symptom=r"cannot import name 'BUFSIZE' from 'numpy'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5671": "reported",
        "https://github.com/numpy/numpy/pull/24357": "related: removed from NumPy",
        "https://github.com/deepspeedai/DeepSpeed/pull/5680": "fixed in 0.14.4, first half",
        "https://github.com/deepspeedai/DeepSpeed/pull/5686": "fixed in 0.14.4",
    },
    fixed_in="0.14.4",
    present=(Source(_SCHEDULER, "from numpy import BUFSIZE"),),
    fixed=(
        Source(_SCHEDULER, "from .constants import AUTOTUNING, AUTOTUNING_METRIC_PATH, BUFSIZE"),
        Source(_SCHEDULER, "from numpy._core.umath import BUFSIZE"),  # first fix on the main branch, #5680
    ),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    deepspeed = lab.import_deepspeed(PATCH.symptom)
    written = lab.tmp / "cmd.txt"
    with open(written, "w", buffering=deepspeed.autotuning.scheduler.BUFSIZE) as file:
        file.write("deepspeed\n")
    assert written.read_text() == "deepspeed\n"
    return f"deepspeed {deepspeed.__version__} was imported; BUFSIZE is {deepspeed.autotuning.scheduler.BUFSIZE}"
