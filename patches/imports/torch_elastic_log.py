"""`import deepspeed` fails with torch 2.4 or later: cannot import name 'log'.

Why: DeepSpeed 0.7.0 to 0.14.0 import `log` from torch's elastic agent, whether elastic training is used or not. torch
    2.4.0 renamed it to `logger` (commit b6201a60c57f); 2.3.1 has it. The same releases then need
    torch_elastic_get_socket_with_port.
How: restores the name in torch's module, for the same logger. This fixes the import; `deepspeed --elastic_training`
    itself needs torch 2.2 or earlier, because it calls methods of torch's agent that have changed since.
Workaround: Scripts set `log` in torch's module to its `logger` before the import. You can keep it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsfix.patch import Patch, Provide, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_API = "torch.distributed.elastic.agent.server.api"
_AGENT = "deepspeed.elasticity.elastic_agent"


def _log(api: Any) -> Any:
    return api.logger


PATCH = Patch(
    title="import deepspeed fails with torch 2.4 or later: cannot import name 'log'",
    severity=Severity.IMPORT,
    # pre-releases: NVIDIA's containers have 2.4.0a0
    affects={"deepspeed": ">=0.12.0,<0.14.1", "torch": ">=2.4.0.dev0"},
    changes=(Provide(_API, "log", _log),),
    symptom=r"cannot import name 'log' from 'torch\.distributed\.elastic\.agent\.server\.api'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5337": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/5346": "fixed in 0.14.1",
    },
    fixed_in="0.14.1",
    present=(Source(_AGENT, f"from {_API} import log, _get_socket_with_port"),),
    fixed=(
        Source(_AGENT, "log = get_logger(__name__)"),
        Source(_AGENT, f"from {_API} import logger as log"),  # as edited by hand
    ),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    imported = f"deepspeed {lab.import_deepspeed(PATCH.symptom).__version__} was imported"
    agent: Any = sys.modules.get(_AGENT)  # gone in 0.19.8
    if agent is None:
        return f"{imported}, without an elastic agent"
    agent.log.debug("the agent has a logger")
    return f"{imported}, and its elastic agent has a logger"
