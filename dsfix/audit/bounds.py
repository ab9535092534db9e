"""How far rounding alone may take a result from the truth. Importing this imports torch.

The yardstick is measured, micro-batch by micro-batch: plain PyTorch in the plan's precision against float64, at the
very weights that DeepSpeed had. The mean of the micro-batches' gradients is then off by at most the mean of their own
errors, however they are added up; what adding and sending them in a narrow dtype costs comes on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

#: Other kernels (a GPU's, fused ones) round elsewhere than the CPU's: errors of twice the size have been measured.
KERNELS = 4.0
#: Roundings that one element of a gradient meets: into the bucket, per accumulation, per rank, after division, ...
ROUNDINGS = 4.0
EPS32 = torch.finfo(torch.float32).eps
#: Relative error of an optimizer's state in fp32: about twenty roundings.
STATE = 64 * EPS32
#: Relative error of an optimizer's update in fp32. Adam's 1 - beta2**t has few digits in its first steps, 6e-5 of
#: itself at t = 1 and beta2 = 0.999; DeepSpeedCPUAdam was seen to be off by 1.1e-5 of an update.
UPDATE = 2e-4


@dataclass
class Spread:
    """Errors of one parameter's gradient over the micro-batches of a global batch, as means of norms.

    error: of plain PyTorch's gradients in the plan's precision. size: of the gradients themselves.
    """

    error: float = 0.0
    size: float = 0.0

    def add(self, true: torch.Tensor, seen: torch.Tensor, count: int) -> None:
        """One of `count` micro-batches."""
        self.error += float((seen - true).norm()) / count
        self.size += float(true.norm()) / count


def gradient(spread: Spread, eps: float, model_eps: float, total: float) -> float:
    """Of a whole tensor, as a norm. eps: of the dtype that gradients are added and sent in; total: the whole norm."""
    return KERNELS * spread.error + ROUNDINGS * eps * spread.size + 1e-3 * model_eps * total


def norm(bounds: list[float]) -> float:
    """Of the norm of the whole gradient: the tensors' errors are independent."""
    return math.sqrt(sum(each * each for each in bounds))


def close(size: float, change: float) -> float:
    """Of a tensor of norm `size`, held in fp32, that a step in fp32 has changed by `change`."""
    return 2 * EPS32 * size + UPDATE * change
