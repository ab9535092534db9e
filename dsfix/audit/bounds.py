"""How far rounding alone may take a result from the truth. Importing this imports torch.

The yardstick is measured, micro-batch by micro-batch: plain PyTorch in the plan's precision against float64, at the
very weights that DeepSpeed had. What adding the micro-batches' gradients up and sending them costs comes on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

#: How many times the measured error: another run of the same arithmetic, in another order or by other kernels, errs as
#: much in another direction. DeepSpeed 0.19.8 on one rank was seen at up to 0.39 of the
#: whole bound (stages 1 and 3, three precisions), which is 4 % of a gradient in bf16 (median) and at most 20 %.
KERNELS = 3.0
#: Errors of adding up and sending, in units of the dtype's eps: one rounding is off by 0.29 of it (root mean
#: square), and ten independent ones, into the bucket, per accumulation, per rank and after division, by 0.9.
ROUNDINGS = 1.0
#: The measured error of few elements may be small by luck: this many units of the model's eps, divided by the square
#: root of their number, come on top. Seen in fp32, of one element: 3.2.
LUCK = 4.0
EPS32 = torch.finfo(torch.float32).eps
#: Relative error of an optimizer's state in fp32: about twenty roundings.
STATE = 64 * EPS32
#: Relative error of an optimizer's update in fp32. Adam's 1 - beta2**t has few digits in its first steps, 6e-5 of
#: itself at t = 1 and beta2 = 0.999; DeepSpeedCPUAdam was seen to be off by 1.1e-5 of an update.
UPDATE = 2e-4


@dataclass
class Spread:
    """Errors of one parameter's gradient over the micro-batches of a global batch, as means of norms.

    squares: of the norms of the errors of plain PyTorch's gradients in the plan's precision, summed and divided by the
    square of the number of micro-batches. bias: the sum of these errors, as a tensor, divided by it. size: the mean of
    the gradients' norms. numel: elements of the tensor.
    """

    squares: float = 0.0
    bias: torch.Tensor | float = 0.0
    size: float = 0.0
    numel: int = 1

    def add(self, true: torch.Tensor, seen: torch.Tensor, count: int) -> None:
        """One of `count` micro-batches."""
        error = (seen - true) / count
        self.squares += float(error.square().sum())
        self.bias = self.bias + error
        self.size += float(true.norm()) / count
        self.numel = true.numel()

    @property
    def error(self) -> float:
        """What the mean over the micro-batches is off: as measured, or as errors that are independent add up."""
        return max(math.sqrt(self.squares), float(torch.as_tensor(self.bias).norm()))


def gradient(spread: Spread, eps: float, model_eps: float, total: float) -> float:
    """Of a whole tensor, as a norm. eps: of the dtype that gradients are added and sent in; total: the whole norm."""
    luck = LUCK * model_eps / math.sqrt(max(1, spread.numel))
    return KERNELS * spread.error + (ROUNDINGS * eps + luck) * spread.size + 1e-3 * model_eps * total


def loss(value: float, error: float, model_eps: float) -> float:
    """error: the mean of what plain PyTorch's losses in the plan's precision are off, which may be little by chance."""
    return KERNELS * error + (0.25 * model_eps + 4 * EPS32) * abs(value)


def norm(bounds: list[float]) -> float:
    """Of the norm of the whole gradient: the tensors' errors are independent."""
    return math.sqrt(sum(each * each for each in bounds))


def close(size: float, change: float) -> float:
    """Of a tensor of norm `size`, held in fp32, that a step in fp32 has changed by `change`."""
    return 2 * EPS32 * size + UPDATE * change
