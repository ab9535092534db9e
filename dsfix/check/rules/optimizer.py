"""The optimizer, whether the config names it or the script passes it."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Found, Level, Rule
from ..facts import Facts
from ..keys import nearest

# classes of torch.optim; DeepSpeed accepts any attribute of that module
_TORCH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD", "SparseAdam"),
)


def _named(facts: Facts) -> str | None:
    """Returns the config's optimizer; None if the script passes one, which overrides it."""
    return None if "optimizer" in facts.arguments else facts.optimizer


def _max_grad_norm(facts: Facts) -> Iterator[Found]:
    if facts.builds_optimizer and "max_grad_norm" in facts.block("optimizer", "params"):
        yield Found("optimizer.params.max_grad_norm", "not an optimizer parameter: DeepSpeed raises a ValueError")


def _unused_max_grad_norm(facts: Facts) -> Iterator[Found]:
    if not facts.builds_optimizer and "max_grad_norm" in facts.block("optimizer", "params"):
        what = (
            "has no effect if the script passes an optimizer; if DeepSpeed builds this optimizer, it raises a "
            "ValueError"
        )
        yield Found("optimizer.params.max_grad_norm", what)


def _unknown(facts: Facts) -> Iterator[Found]:
    name = _named(facts)
    if name is not None and name not in (*facts.known.optimizers, *_TORCH):
        near = nearest(name, [*facts.known.optimizers, *_TORCH])
        hint = f"; did you mean {near}?" if near else ""
        yield Found("optimizer.type", f'"{name}" is neither in this release nor in torch.optim{hint}')


RULES = (
    Rule(
        id="max_grad_norm_in_optimizer",
        level=Level.ERROR,
        find=_max_grad_norm,
        remedy='use the top-level key "gradient_clipping"',
        evidence=("run: 0.14.2 to 0.19.8: not supported as an optimizer parameter",),
    ),
    Rule(
        id="unused_max_grad_norm",
        level=Level.WARNING,
        find=_unused_max_grad_norm,
        remedy='use the top-level key "gradient_clipping"',
        evidence=("run: 0.14.2 to 0.19.8",),
    ),
    Rule(
        id="unknown_optimizer",
        level=Level.ERROR,
        find=_unknown,
        remedy="use an existing one, e.g. AdamW, or pass the optimizer to deepspeed.initialize",
        evidence=("run: 0.14.2 to 0.19.8: is not a supported DeepSpeed Optimizer",),
    ),
)
