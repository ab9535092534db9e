"""Backward passes that only look: a probe of the forward pass that is trained, or a micro-batch, discarded or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_ROUND = {"stage": "3", "accumulation": "2", "offload": "optimizer"}
_PINNED: Sequence[dict[str, str]] = [{"stage": "3"}, _ROUND, {"stage": "0", "precision": "fp16"}]
#: BF16_Optimizer adds a gradient to its own in each pass, and with accumulation so does ZeRO.
_ONE: dict[str, Any] = {"accumulation": ("1",), "precision": ("fp32", "fp16"), "pinned": _PINNED}
_FIRST = [{"stage": stage, "accumulation": accumulation} for stage, accumulation in ("22", "13")]
#: Elsewhere ZeRO has added the micro-batch to what it keeps.
_INSIDE: dict[str, Any] = {
    "stage": "01",
    "accumulation": ("2", "3"),
    "precision": ("fp32", "fp16"),
    "offload": ("none",),
    "pinned": [{"stage": "1", "accumulation": "2"}],
}


def _by_engine(engine: Any) -> None:
    engine.zero_grad()


def _by_optimizer(engine: Any) -> None:
    engine.optimizer.zero_grad()


def _by_module(engine: Any) -> None:
    engine.module.zero_grad()


def _by_module_to_zero(engine: Any) -> None:
    engine.module.zero_grad(set_to_none=False)


def _by_parts(engine: Any) -> None:
    for part in engine.module.children():
        part.zero_grad()


def _by_hand(engine: Any) -> None:
    for parameter in engine.module.parameters():
        parameter.grad = None


def _by_hand_if_there(engine: Any) -> None:
    for parameter in engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad = None


def _by_hand_to_zero(engine: Any) -> None:
    for parameter in engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def _deleted(engine: Any) -> None:
    for parameter in engine.module.parameters():
        del parameter.grad


def _looked_at(engine: Any) -> None:
    norms = [float(parameter.grad.norm()) for parameter in engine.module.parameters() if parameter.grad is not None]
    assert all(norm >= 0 for norm in norms)


def _head(engine: Any) -> None:
    for parameter in engine.module.head.parameters():
        parameter.grad = None


def _probe(job: Job, *ways: Callable[[Any], None]) -> None:
    """The first micro-batch of most steps has a probe of a larger loss, discarded in each of these ways in turn."""
    engine = job.engine(job.MLP())
    for step in range(len(ways) + 2):
        for micro, (inputs, targets) in enumerate(job.batches(step)):
            output = engine(inputs).float()
            if micro == 0 and 0 < step <= len(ways):
                engine.backward(4 * output.square().mean(), retain_graph=True)
                ways[step - 1](engine)
            engine.backward(job.torch.nn.functional.mse_loss(output, targets))
            engine.step()
        job.look(engine, f"step {step}")


def _first(job: Job, *ways: Callable[[Any], None], after: int = 1) -> None:
    """The first micro-batch of a step is bad and discarded, in each of these ways in turn; `after` that no more."""
    engine = job.engine(job.MLP())
    for step in range(len(ways) + after):
        for micro, (inputs, targets) in enumerate(job.batches(step)):
            bad = micro == 0 and step < len(ways)
            engine.backward(job.loss(engine, (inputs, targets * 4 if bad else targets)))
            if bad:
                ways[step](engine)
            engine.step()
        job.look(engine, f"step {step}")


@scenario("a probe of the forward pass is discarded with zero_grad() of engine, optimizer or module", **_ONE)
def probe_discarded(job: Job) -> None:
    _probe(job, _by_engine, _by_optimizer, _by_module, _by_module_to_zero, _by_parts)


@scenario("a probe of the forward pass is discarded by .grad = None or del .grad", **_ONE)
def probe_discarded_by_hand(job: Job) -> None:
    _probe(job, _by_hand, _deleted)


@scenario("a probe of the forward pass is discarded where .grad is not None", **_ONE)
def probe_discarded_if_there(job: Job) -> None:
    _probe(job, _by_hand_if_there, _by_hand_to_zero)


@scenario("a probe of the forward pass is looked at, and trained as well", stage="03", **_ONE)
def probe_kept(job: Job) -> None:
    _probe(job, _looked_at)


@scenario("of a probe of the forward pass only the head's gradients are discarded", stage="03", **_ONE)
def probe_discarded_in_part(job: Job) -> None:
    _probe(job, _head)


@scenario("gradient norms by torch.autograd.grad of the loss that is trained", pinned=_PINNED)
def probe_by_autograd(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        inputs, targets = batch
        output = engine(inputs.requires_grad_()).float()
        job.torch.autograd.grad(output.square().mean(), inputs, retain_graph=True)
        return job.torch.nn.functional.mse_loss(output, targets)

    for step in range(4):
        job.train(engine, step, loss)


@scenario("the first micro-batch is discarded with zero_grad() of engine, optimizer or module", **_INSIDE)
def first_discarded(job: Job) -> None:
    _first(job, _by_engine, _by_optimizer, _by_module, _by_module_to_zero, _by_parts)


@scenario("the first micro-batch is discarded by .grad = None, .grad.zero_() or del .grad", **_INSIDE)
def first_discarded_by_hand(job: Job) -> None:
    _first(job, _by_hand, _by_hand_if_there, _by_hand_to_zero, _deleted)


@scenario("ZeRO-2: the first of two micro-batches is discarded in every way", reference=False, pinned=_FIRST[:1],
          stage="2", accumulation=("2",))  # fmt: skip
def first_discarded_zero2(job: Job) -> None:
    by_hand = (_by_hand, _by_hand_if_there, _by_hand_to_zero, _deleted)
    _first(job, _by_engine, _by_module, _by_module_to_zero, _by_parts, *by_hand, after=0)


@scenario("gradients are looked at after each micro-batch", accumulation=("2", "3"), pinned=_FIRST)
def looked_at_inside(job: Job) -> None:
    engine = job.engine(job.MLP())

    def backward(loss: Any) -> None:
        engine.backward(loss)
        _looked_at(engine)

    for step in range(4):
        job.train(engine, step, backward=backward)


@scenario("a branch is only used by first micro-batches that are discarded, the other by those that are trained",
          stage="012", accumulation=("2",), precision=("fp32", "fp16"),
          pinned=[{"stage": stage, "offload": "optimizer", "accumulation": "2"} for stage in "21"])  # fmt: skip
def branch_discarded(job: Job) -> None:
    engine = job.engine(job.model(lambda self, x, which: (self.first, self.second)[which](x),
                                  first=job.MLP(), second=job.MLP(seed=1)))  # fmt: skip
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch, micro))
            if micro == 0:
                _by_hand(engine)
            engine.step()
        job.look(engine, f"step {step}")
