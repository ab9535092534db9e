"""Training with TiledLoss, and without tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent

from ._tiled import module_of, train

if TYPE_CHECKING:
    from dsfix.lab import Lab

_WIDTH, _WORDS = 16, 6
_LEARNING_RATE, _STEPS = 0.5, 2


def trained(lab: Lab, length: int, masked: int, tiles: int, error: type[Exception], message: str) -> str:
    """A report, or BugPresent if the `error` has this message. masked: tokens without a label, at the beginning."""
    torch, reference = lab.torch, lab.reference
    function = module_of(lab, "TiledLoss").TiledLoss

    def mean(logits: Any, labels: Any, vocab_size: int, shift_labels: Any) -> Any:
        """As a model's `loss_function`."""
        return torch.nn.functional.cross_entropy(logits.float().view(-1, vocab_size), shift_labels.reshape(-1))

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, tiled: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head, self.tiled = torch.nn.Linear(_WIDTH, _WORDS), tiled

        def forward(self, x: Any, labels: Any) -> Any:
            logits = self.head(x)
            if self.tiled:
                return function.apply(mean, logits, _WORDS, labels, tiles)
            return mean(logits, None, _WORDS, labels)

    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(_STEPS):
        labels = torch.randint(_WORDS, (1, length), generator=generator)
        labels[:, :masked] = -100
        batches.append((torch.randn(1, length, _WIDTH, generator=generator), labels))
    model = Model(False)
    right = reference.train(model, [[batch] for batch in batches], model, "SGD", lr=_LEARNING_RATE).parameters
    try:
        seen = train(lab, Model(True), batches, _LEARNING_RATE)
    except error as raised:
        if message in str(raised):
            raise BugPresent(str(raised)) from raised
        raise
    after = f"{length} tokens, {masked} of them masked, in {tiles} tiles: after {_STEPS} steps"
    report: str = reference.compare(seen, right, {}, after=after)
    return report
