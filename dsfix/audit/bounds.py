"""How much rounding alone may change a result. Importing this imports torch.

The rounding error is measured for each micro-batch: plain PyTorch in the plan's precision against float64, at
DeepSpeed's own weights. The error of accumulating and reducing the gradients is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

#: Factor on the measured error: the same arithmetic in another order or by other kernels has an error of the same size
#: in another direction. DeepSpeed 0.19.8 on one rank reached up to 0.39 of the whole bound (stages 1 and 3, three
#: precisions), which is 4 % of a gradient in bf16 (median) and at most 20 %.
KERNELS = 3.0
#: Errors of accumulation and reduction, in units of the dtype's eps: one rounding has an error of 0.29 (root mean
#: square); ten independent ones, into the bucket, per accumulation, per rank and after division, have 0.9.
ROUNDINGS = 1.0
#: The measured error of few elements may be small by chance: this many units of the model's eps, divided by the square
#: root of their number, are added. Observed in fp32 for one element: 3.2.
LUCK = 4.0
EPS32 = torch.finfo(torch.float32).eps
#: Relative error of an optimizer's state in fp32: about twenty roundings.
STATE = 64 * EPS32
#: Relative error of an optimizer's update in fp32. Adam's 1 - beta2**t has few significant digits in the first steps:
#: a relative error of 6e-5 at t = 1 and beta2 = 0.999. Observed for DeepSpeedCPUAdam: 1.1e-5 of an update.
UPDATE = 2e-4


@dataclass
class Spread:
    """Errors of one parameter's gradient over the micro-batches of a global batch.

    The errors are those of plain PyTorch in the plan's precision. squares: the sum of their squared norms, divided by
    the square of the number of micro-batches. bias: the mean error, as a tensor. size: the mean norm of the gradients.
    numel: elements of the tensor.
    """

    squares: float = 0.0
    bias: torch.Tensor | float = 0.0
    size: float = 0.0
    numel: int = 1

    def add(self, true: torch.Tensor, seen: torch.Tensor, count: int) -> None:
        """Adds one of `count` micro-batches."""
        error = (seen - true) / count
        self.squares += float(error.square().sum())
        self.bias = self.bias + error
        self.size += float(true.norm()) / count
        self.numel = true.numel()

    @property
    def error(self) -> float:
        """The error of the mean over the micro-batches: as measured, or as the sum of independent errors."""
        return max(math.sqrt(self.squares), float(torch.as_tensor(self.bias).norm()))


def gradient(spread: Spread, eps: float, model_eps: float, total: float) -> float:
    """Returns the bound of a tensor's gradient, as a norm. eps: of the reduction's dtype; total: the global norm."""
    luck = LUCK * model_eps / math.sqrt(max(1, spread.numel))
    return KERNELS * spread.error + (ROUNDINGS * eps + luck) * spread.size + 1e-3 * model_eps * total


def loss(value: float, error: float, model_eps: float) -> float:
    """Returns the bound of the loss. error: mean error of PyTorch's losses in the plan's precision, small by chance."""
    return KERNELS * error + (0.25 * model_eps + 4 * EPS32) * abs(value)


def norm(bounds: list[float]) -> float:
    """Returns the bound of the global gradient norm: the tensors' errors are independent."""
    return math.sqrt(sum(bound * bound for bound in bounds))


def close(size: float, change: float) -> float:
    """Returns the bound of an fp32 tensor of norm `size` after an fp32 step that changed it by `change`."""
    return 2 * EPS32 * size + UPDATE * change
