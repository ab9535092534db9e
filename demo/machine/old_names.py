"""Restores two names that torch and numpy had when DeepSpeed 0.14.2 was released, without dsfix."""

from __future__ import annotations

import numpy
import torch.distributed.elastic.agent.server.api as torch_elastic
from torch.distributed.elastic.utils.distributed import get_socket_with_port

torch_elastic._get_socket_with_port = get_socket_with_port
numpy.BUFSIZE = 8192
