"""Models whose output is their loss, or contains it. Importing this imports torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class LossAndOutput(nn.Module):  # type: ignore[misc,unused-ignore]
    """`model` with a Hugging Face output: (inputs, targets) -> {"loss": mean squared error, "logits": model output}."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(inputs)
        return {"loss": functional.mse_loss(logits, targets), "logits": logits}

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Only the loss."""
        result: torch.Tensor = self(inputs, targets)["loss"]
        return result


class Loss(nn.Module):  # type: ignore[misc,unused-ignore]
    """`model` with its loss: (inputs, targets) -> mean squared error."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.model(inputs), targets)
