"""The optimizer, whether the config names it or the script passes it."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from ...rules import Match, error, warning
from ..facts import Facts
from ..keys import nearest

# classes of torch.optim; DeepSpeed accepts any attribute of that module
_TORCH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD", "SparseAdam"),
)
# accepted by DeepSpeed's is_zero_supported_optimizer: names in the config, and classes
_TESTED = {"adam", "adamw", "adagrad", "lion", "muadam", "muadamw"}
_TESTED_CLASSES = (
    *("Adam", "AdamW", "Adagrad", "FusedAdam", "FusedLion", "DeepSpeedCPUAdam", "DeepSpeedCPUAdagrad"),
    *("DeepSpeedCPULion", "ZenFlowCPUAdam", "MuonWithAuxAdam"),
)
_WITHOUT_ZERO = ("onebitadam", "onebitlamb", "zerooneadam")


def _named(facts: Facts) -> str | None:
    """Returns the config's optimizer; None if the script passes one, which overrides it."""
    return None if "optimizer" in facts.arguments else facts.optimizer


@error('use the top-level key "gradient_clipping"', "run: 0.14.2 to 0.19.8: not supported as an optimizer parameter")
def max_grad_norm_in_optimizer(facts: Facts) -> Iterator[Match]:
    if facts.builds_optimizer and "max_grad_norm" in facts.block("optimizer", "params"):
        yield Match("optimizer.params.max_grad_norm", "not an optimizer parameter: DeepSpeed raises a ValueError")


@warning('use the top-level key "gradient_clipping"', "run: 0.14.2 to 0.19.8")
def unused_max_grad_norm(facts: Facts) -> Iterator[Match]:
    if not facts.builds_optimizer and "max_grad_norm" in facts.block("optimizer", "params"):
        what = "has no effect if the script passes an optimizer; otherwise DeepSpeed raises a ValueError"
        yield Match("optimizer.params.max_grad_norm", what)


@error(
    "use an existing one, e.g. AdamW, or pass the optimizer to deepspeed.initialize",
    "run: 0.14.2 to 0.19.8: is not a supported DeepSpeed Optimizer",
)
def unknown_optimizer(facts: Facts) -> Iterator[Match]:
    name = _named(facts)
    if name is not None and name not in (*facts.known.optimizers, *_TORCH):
        near = nearest(name, [*facts.known.optimizers, *_TORCH])
        hint = f"; did you mean {near}?" if near else ""
        yield Match("optimizer.type", f'"{name}" is neither in this release nor in torch.optim{hint}')


@error(
    'set "zero_allow_untested_optimizer": true',
    "run: 0.14.2 to 0.19.8, stages 1 to 3: SGD, Adamax, NAdam; Muon through 0.18.4",
)
def untested_optimizer(facts: Facts) -> Iterator[Match]:
    if not facts.stage or facts.get("zero_allow_untested_optimizer"):
        return
    name, own = _named(facts), facts.arguments.get("optimizer")
    known = name in (*facts.known.optimizers, *_TORCH) and name not in _WITHOUT_ZERO
    tested = name in _TESTED or (name == "muon" and facts.release >= Version("0.18.5"))
    if name is not None and known and not tested:
        yield Match("optimizer.type", f"{name} is not tested with ZeRO: DeepSpeed raises an AssertionError")
    if own is not None and facts.plain and own not in _TESTED_CLASSES:
        what = f"the script passes {own}, which is not tested with ZeRO: DeepSpeed raises an AssertionError"
        yield Match("zero_allow_untested_optimizer", what)


@error("set stage 0, or use a different optimizer", "run: 0.14.2, 0.15.4, 0.16.9, stages 1 to 3")
def one_bit_with_zero(facts: Facts) -> Iterator[Match]:
    if facts.stage and _named(facts) in _WITHOUT_ZERO and _named(facts) in facts.known.optimizers:
        yield Match("optimizer.type", f"{_named(facts)} does not support ZeRO: DeepSpeed raises an AssertionError")
