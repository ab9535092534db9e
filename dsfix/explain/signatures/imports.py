"""`import deepspeed` fails."""

from __future__ import annotations

from ..signature import Signature

_LAUNCHER = "Start the job with torchrun: the deepspeed launcher imports DeepSpeed before the script runs."

SIGNATURES = (
    Signature(
        id="torch_elastic_names",
        title="import deepspeed fails: torch removed a private name from torch.distributed.elastic",
        what="DeepSpeed through 0.14.3 imports names that torch 2.4 removed: 'log' through 0.14.0, "
        "'_get_socket_with_port' through 0.14.3.",
        remedy=f"DeepSpeed 0.14.4 or later. With dsfix: {_LAUNCHER[0].lower()}{_LAUNCHER[1:]}",
        patches=("torch_elastic_log", "torch_elastic_get_socket_with_port"),
    ),
    Signature(
        id="numpy_bufsize",
        title="import deepspeed fails: NumPy 2 has no BUFSIZE",
        what="DeepSpeed through 0.14.3 imports a name that NumPy 2.0 removed.",
        remedy=f"DeepSpeed 0.14.4 or later, or NumPy below 2. With dsfix: {_LAUNCHER[0].lower()}{_LAUNCHER[1:]}",
        patches=("numpy_bufsize",),
    ),
)
