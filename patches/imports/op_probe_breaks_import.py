"""`import deepspeed` fails on a machine with a GPU and without the CUDA toolkit: MissingCUDAException.

Why: since 0.14.1 `import deepspeed` asks each operator's builder whether it could be compiled here, whether the job
    needs it or not. Some look for the toolkit's version if torch sees a GPU, and raise if CUDA_HOME is not set or has
    no nvcc, as if torch is installed from PyPI and nothing else. 0.14.0 used the answers of the machine that built the
    package.
How: if the probe of one of these builders raises, its answer is no, with a warning, as in 0.19.5 and later. Building an
    operator that a job does need fails as before, with the reason.
Workaround: None in the script; installing the CUDA toolkit, or setting CUDA_HOME to one, helps.
"""

from __future__ import annotations

import copy
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Patch, Replace, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_VERSION_INFO = "deepspeed.git_version_info"
_MESSAGE = "CUDA_HOME does not exist"


def _guarded(builders: dict[str, Any]) -> dict[str, Any]:
    return {name: _with_guard(builder) for name, builder in builders.items()}


def _with_guard(builder: Any) -> Any:
    def is_compatible(*args: Any, **options: Any) -> bool:
        try:
            return bool(builder.is_compatible(*args, **options))
        except Exception as error:
            builder.warning(f"{builder.name}: whether it can be compiled here cannot be told, taken as no: {error}")
            return False

    guarded = copy.copy(builder)
    guarded.is_compatible = is_compatible
    return guarded


PATCH = Patch(
    title="import deepspeed fails with a GPU and no CUDA toolkit: MissingCUDAException",
    severity=Severity.IMPORT,
    affects={"deepspeed": ">=0.14.1,<0.19.5"},
    changes=(Replace("deepspeed.ops.op_builder.all_ops:ALL_OPS", _guarded),),
    symptom=rf"git_version_info[\s\S]*({_MESSAGE}|No such file or directory: '.*nvcc')",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7452": "reported",
        "https://github.com/jingyaogong/minimind/issues/48": "reported",
        "https://github.com/qualcomm/aimet/issues/3984": "reported",
        "https://github.com/whittle-org/whittle/issues/153": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8216": "fixed in 0.19.5",
    },
    fixed_in="0.19.5",
    present=(Source(_VERSION_INFO, "builder.is_compatible()"),),
    fixed=(Source(_VERSION_INFO, "from .ops.op_builder.builder import probe_is_compatible"),),
)


def reproduce(lab: Lab) -> str:
    from unittest import mock

    torch = lab.torch
    if "deepspeed" in sys.modules:
        raise CannotTell("deepspeed is already imported")
    os.environ["DS_ACCELERATOR"] = "cuda"
    from torch.utils import cpp_extension

    with mock.patch.object(cpp_extension, "CUDA_HOME", None):
        try:
            import deepspeed
        except Exception as error:
            passed = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            if _MESSAGE in str(error) and any(name.endswith("/git_version_info.py") for name in passed):
                raise BugPresent(f"import deepspeed: {error}") from error
            raise
        ops = deepspeed.ops.__compatible_ops__
    assert torch.cuda.is_available(), "torch sees no GPU"
    return (
        f"deepspeed {deepspeed.__version__} was imported; {sum(ops.values())} of {len(ops)} operators can be compiled"
    )
