"""`import deepspeed` fails with torch 2.4 or later: cannot import name '_get_socket_with_port'.

Why: DeepSpeed 0.7.0 to 0.14.3 import `_get_socket_with_port` from torch's elastic agent, whether elastic training is
    used or not. torch 2.4.0 removed it; 2.3.1 has it. Through 0.14.0 the import of `log` fails first:
    torch_elastic_log.
How: restores the name in torch's module: the function of the same purpose in
    torch.distributed.elastic.utils.distributed, which also returns a socket that listens on a free port. This fixes the
    import; `deepspeed --elastic_training` itself needs torch 2.2 or earlier, because it calls methods of torch's agent
    that have changed since.
Workaround: Scripts put a function of this name into torch's module before the import. You can keep it; it is then used.
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from dsfix.patch import Patch, Provide, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_API = "torch.distributed.elastic.agent.server.api"
_AGENT = "deepspeed.elasticity.elastic_agent"


def _get_socket_with_port(api: Any) -> Any:
    from torch.distributed.elastic.utils.distributed import get_socket_with_port

    return get_socket_with_port


PATCH = Patch(
    title="import deepspeed fails with torch 2.4 or later: cannot import name '_get_socket_with_port'",
    severity=Severity.IMPORT,
    # pre-releases: NVIDIA's containers have 2.4.0a0
    affects={"deepspeed": ">=0.12.0,<0.14.4", "torch": ">=2.4.0.dev0"},
    changes=(Provide(_API, "_get_socket_with_port", _get_socket_with_port),),
    symptom=r"cannot import name '_get_socket_with_port' from 'torch\.distributed\.elastic\.agent\.server\.api'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5603": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5654": "fixed in 0.14.4",
        "https://github.com/pytorch/pytorch/pull/125743": "related: removed the name from torch",
    },
    fixed_in="0.14.4",
    present=(Source(f"{_AGENT}:DSElasticAgent._set_master_addr_port", "sock = _get_socket_with_port()"),),
    fixed=(Source(_AGENT, "from torch.distributed.elastic.utils.distributed import get_free_port"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    imported = f"deepspeed {lab.import_deepspeed(PATCH.symptom).__version__} was imported"
    agent: Any = sys.modules.get(_AGENT)  # gone in 0.19.8
    if not hasattr(agent, "_get_socket_with_port"):
        return f"{imported}, without that name"
    with closing(agent._get_socket_with_port()) as listening:
        assert listening.getsockname()[1] > 0, "no port was reserved"
    return f"{imported}, and the function reserved a port"
