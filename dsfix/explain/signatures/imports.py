"""`import deepspeed` fails."""

from __future__ import annotations

from ..signature import Signature

_LAUNCHER = "Start the job with torchrun: the deepspeed launcher imports DeepSpeed before any script."

SIGNATURES = (
    Signature(
        id="torch_elastic_names",
        title="import deepspeed fails: torch has dropped a private name of torch.distributed.elastic",
        what="DeepSpeed up to 0.14.3 imports names of torch that torch 2.4 no longer has: 'log' up to 0.14.0, "
        "'_get_socket_with_port' up to 0.14.3.",
        remedy=f"DeepSpeed 0.14.4 or newer. With dsfix: {_LAUNCHER[0].lower()}{_LAUNCHER[1:]}",
        patches=("torch_elastic_log", "torch_elastic_get_socket_with_port"),
    ),
    Signature(
        id="numpy_bufsize",
        title="import deepspeed fails: numpy 2 has no BUFSIZE",
        what="DeepSpeed up to 0.14.3 imports a name that numpy 2.0 has dropped.",
        remedy=f"DeepSpeed 0.14.4 or newer, or numpy below 2. With dsfix: {_LAUNCHER[0].lower()}{_LAUNCHER[1:]}",
        patches=("numpy_bufsize",),
    ),
)
