"""Graphs with more than one owner, and backward passes that only look."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.scenarios import backward, discarding

# Graphs with more than one owner: two engines and one loss, an engine and a module of the script's own.
#
# Each owner's gradients are divided by its own number of micro-batches: plain PyTorch's are, by `_backward`.


_WIDTH = 16
_PLAIN: Any = {
    "ranks": ("1", "2"),
    "accumulation": ("2", "3"),
    "offload": ("none",),
    "clipping": ("off",),
    "optimizer": ("SGD", "client's SGD"),
}
_FITS: Any = {**_PLAIN, "precision": ("fp32", "bf16")}
_FP32: Any = {**_PLAIN, "precision": ("fp32",)}  # the script would have to look after its own module's precision
_HEAD: Any = [{"stage": "1", "accumulation": "2", "ranks": "1"}]
_ENGINES: Any = [{"stage": "2", "accumulation": "2"}]


def _encoder(job: Job, seed: int = 0) -> Any:
    """(inputs) -> as wide an output."""
    job.torch.manual_seed(seed)
    nn = job.torch.nn
    return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _WIDTH))


def _with_loss(job: Job) -> Any:
    """(inputs, targets) -> the loss, the logits and the hidden states that it was computed from."""

    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        hidden = self.encoder(inputs)
        logits = self.head(hidden.tanh())
        return {"loss": backward._mse(job, logits, targets), "logits": logits, "hidden": hidden}

    job.torch.manual_seed(5)
    return job.model(forward, encoder=_encoder(job), head=job.torch.nn.Linear(_WIDTH, 1))


def _with_two(job: Job) -> Any:
    """(inputs, targets) -> the loss and the logits."""

    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        logits = self.body(inputs)
        return {"loss": backward._mse(job, logits, targets), "logits": logits}

    return job.model(forward, body=job.MLP())


def _backward(job: Job, by: Any, others: Any, loss: Any) -> None:
    """`by.backward(loss)`; each of the others has its own number of micro-batches in plain PyTorch, too."""
    if not job.plain:
        by.backward(loss)
        return
    for engine in (by, *others):
        parameters = [each for each in engine.module.parameters() if each.requires_grad]
        found = job.torch.autograd.grad(
            loss / engine.gradient_accumulation_steps(), parameters, retain_graph=True, allow_unused=True
        )
        for parameter, gradient in zip(parameters, found):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _of_two(job: Job, first: Any, second: Any, loss: Callable[[Any, Any, Any], Any], by: int = 0) -> None:
    engines = [first, second]
    for step in range(2):
        for number in range(12):  # a multiple of each number of micro-batches
            value = loss(first, second, job.batch(step * 12 + number))
            _backward(job, engines[by], [engines[1 - by]], value)
            for engine in engines:
                engine.step()
            job.note(f"step {step}: loss of micro-batch {number}", value)
        for number, engine in enumerate(engines):
            job.look(engine, f"step {step}, engine {number}")


def _engine(job: Job, model: Any, accumulation: int) -> Any:
    return job.engine(model, gradient_accumulation_steps=accumulation)


def _sum(job: Job) -> Callable[[Any, Any, Any], Any]:
    return lambda first, second, batch: job.loss(first, batch) + job.loss(second, batch)


@scenario("two engines, the loss is the sum of their losses", pinned=_ENGINES, stage="123", **_PLAIN)
def sum_of_two(job: Job) -> None:
    _of_two(job, job.engine(job.MLP()), job.engine(job.MLP(seed=1)), _sum(job))


@scenario("two engines that accumulate differently, the loss is the sum of their losses")
@settings(pinned=_ENGINES, stage="123", **_FITS)
def sum_of_two_paces(job: Job) -> None:
    _of_two(job, _engine(job, job.MLP(), 4), _engine(job, job.MLP(seed=1), 2), _sum(job))


@scenario("two engines that accumulate differently, backward by the second one", stage="2", **_FITS)
def sum_by_the_second(job: Job) -> None:
    _of_two(job, _engine(job, job.MLP(), 4), _engine(job, job.MLP(seed=1), 3), _sum(job), by=1)


@scenario("an engine that accumulates feeds one that does not; backward by the first")
@settings(pinned=_ENGINES, stage="13", **_FITS)
def chain_by_the_encoder(job: Job) -> None:
    def loss(first: Any, second: Any, batch: Any) -> Any:
        return job.loss(second, (first(batch[0]), batch[1]))

    _of_two(job, _engine(job, _encoder(job), 4), _engine(job, job.MLP(seed=1), 1), loss)


@scenario("an engine that accumulates feeds one that does not; backward by the second", stage="1", **_FITS)
def chain_by_the_head(job: Job) -> None:
    def loss(first: Any, second: Any, batch: Any) -> Any:
        return job.loss(second, (first(batch[0]), batch[1]))

    _of_two(job, _engine(job, _encoder(job), 4), _engine(job, job.MLP(seed=1), 1), loss, by=1)


@scenario("two engines that accumulate equally, one feeds the other", stage="23", **_FITS)
def chain(job: Job) -> None:
    def loss(first: Any, second: Any, batch: Any) -> Any:
        return job.loss(second, (first(batch[0]), batch[1]))

    _of_two(job, job.engine(_encoder(job)), job.engine(job.MLP(seed=1)), loss)


@scenario("two engines that accumulate differently, one returns its loss and logits", stage="13", **_FITS)
def sum_with_a_dictionary(job: Job) -> None:
    def loss(first: Any, second: Any, batch: Any) -> Any:
        return first(*batch)["loss"] + job.loss(second, batch)

    _of_two(job, _engine(job, _with_loss(job), 2), _engine(job, job.MLP(seed=1), 4), loss)


@scenario("a student's engine learns from an engine that is only evaluated, beside its own loss", stage="23", **_FITS)
def distilled(job: Job) -> None:
    student, teacher = job.engine(_with_loss(job)), job.engine(job.MLP(seed=1))
    teacher.eval()

    def loss(batch: Any) -> Any:
        with job.torch.no_grad():
            target = teacher(batch[0]).float()
        output = student(*batch)
        return output["loss"] + 0.5 * backward._mse(job, output["logits"], target)

    job.steps(student, range(3), loss)


@scenario("a frozen reward model in an engine that accumulates differently; the gradient passes through it")
@settings(stage="01", **_FITS)
def rewarded(job: Job) -> None:
    policy, reward = job.engine(_encoder(job)), _engine(job, job.MLP(seed=1), 4)
    for parameter in reward.module.parameters():
        parameter.requires_grad_(False)
    job.steps(policy, range(3), lambda batch: job.loss(reward.module, (policy(batch[0]), batch[1])))


@scenario("the engine is called on its own output", stage="13", **_FITS)
def on_its_own_output(job: Job) -> None:
    engine = job.engine(_with_loss(job))
    job.steps(engine, range(3), lambda batch: engine(engine(*batch)["hidden"], batch[1])["loss"])


def _by_outputs() -> bool:
    """Whether the release divides by the accumulation steps at the engine's outputs, not the whole loss."""
    version = importlib.import_module("deepspeed").__version__
    return (0, 18, 3) <= tuple(int(each) for each in version.partition("+")[0].split(".")[:3]) < (0, 19, 6)


def _with_head(job: Job, model: Any, loss: Callable[[Any, Any, Any], Any], tail: bool = True) -> None:
    """loss: of the engine, the script's own module and a batch. Its gradients are averaged by the script."""
    engine = job.engine(model)
    job.torch.manual_seed(9)
    head = job.torch.nn.Linear(_WIDTH if tail else 1, 1).to(job.device, job.dtype)
    optimizer = job.torch.optim.SGD(head.parameters(), lr=0.05)
    averages = not job.plain and _by_outputs()
    for step in range(3):
        for batch in job.batches(step):
            value = loss(engine, head, batch)
            engine.backward(value)
            engine.step()
        for each in head.parameters():
            if averages:
                each.grad /= job.accumulation
            if job.world_size > 1:
                total = each.grad.to("cpu", job.torch.float32)
                job.torch.distributed.all_reduce(total)
                each.grad.copy_(total / job.world_size)
        optimizer.step()
        optimizer.zero_grad()
        job.look(engine, f"step {step}")
        for name, each in head.named_parameters():
            job.note(f"step {step}: {name} of the head", each)


@scenario("an engine and a head of the script's own after it", pinned=_HEAD, stage="0123", **_FP32)
def head(job: Job) -> None:
    _with_head(job, _encoder(job), lambda engine, head, batch: backward._mse(job, head(engine(batch[0])), batch[1]))


@scenario("a head of the script's own beside the loss in the model's dictionary", stage="2", **_FP32)
def head_beside_the_loss(job: Job) -> None:
    def loss(engine: Any, head: Any, batch: Any) -> Any:
        return engine(*batch)["loss"] + backward._mse(job, head(batch[0]), batch[1])

    _with_head(job, _with_loss(job), loss)


@scenario("a head of the script's own on the logits, beside the loss in the model's dictionary", stage="13", **_FP32)
def head_on_the_logits(job: Job) -> None:
    def loss(engine: Any, head: Any, batch: Any) -> Any:
        output = engine(*batch)
        return output["loss"] + backward._mse(job, head(output["logits"]), batch[1])

    _with_head(job, _with_loss(job), loss, tail=False)


@scenario("the engine's inputs come from a layer of the script's own", stage="02", **_FP32)
def layer_before(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.torch.manual_seed(9)
    layer = job.torch.nn.Linear(_WIDTH, _WIDTH).to(job.device, job.dtype)
    for step in range(3):
        job.train(engine, step, lambda batch: job.loss(engine, (layer(batch[0]), batch[1])))
        for name, each in layer.named_parameters():
            job.note(f"step {step}: gradient of {name}", each.grad)
        layer.zero_grad()


@scenario("fp16 without ZeRO, the script multiplies the loss by the loss scale")
@settings(
    pinned=[{"precision": "fp16"}],
    works_around=("fp16_stage0_loss_unscaled",),
    stage="0",
    **{**_PLAIN, "precision": ("fp16",)},
)
def scaled_by_the_script(job: Job) -> None:
    engine = job.engine(job.MLP())
    unscaled = not job.plain and hasattr(engine, "_backward_prologue_per_tensor")
    job.steps(
        engine,
        range(4),
        backward=lambda loss: engine.backward(loss * engine.optimizer.loss_scale if unscaled else loss),
    )


@scenario("the script multiplies the loss in the dictionary by the accumulation steps, by which it is divided twice")
@settings(
    pinned=[{"stage": "1", "accumulation": "2"}], works_around=("dict_output_double_scaling",), stage="12", **_FITS
)
def multiplied_by_the_script(job: Job) -> None:
    engine = job.engine(_with_two(job))
    factor = job.accumulation if not job.plain and _by_outputs() else 1
    job.steps(
        engine, range(3), lambda batch: engine(*batch)["loss"], backward=lambda loss: engine.backward(loss * factor)
    )


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


def _by_module_to_zero(engine: Any) -> None:
    engine.module.zero_grad(set_to_none=False)


def _by_parts(engine: Any) -> None:
    for part in engine.module.children():
        part.zero_grad()


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
    _probe(job, discarding._by_engine, discarding._by_optimizer, discarding._by_module, _by_module_to_zero, _by_parts)


@scenario("a probe of the forward pass is discarded by .grad = None or del .grad", **_ONE)
def probe_discarded_by_hand(job: Job) -> None:
    _probe(job, discarding._by_hand, _deleted)


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

    job.steps(engine, range(4), loss)


@scenario("the first micro-batch is discarded with zero_grad() of engine, optimizer or module", **_INSIDE)
def first_discarded(job: Job) -> None:
    _first(job, discarding._by_engine, discarding._by_optimizer, discarding._by_module, _by_module_to_zero, _by_parts)


@scenario("the first micro-batch is discarded by .grad = None, .grad.zero_() or del .grad", **_INSIDE)
def first_discarded_by_hand(job: Job) -> None:
    _first(job, discarding._by_hand, _by_hand_if_there, _by_hand_to_zero, _deleted)


@scenario("ZeRO-2: the first of two micro-batches is discarded in every way")
@settings(reference=False, pinned=_FIRST[:1], stage="2", accumulation=("2",))
def first_discarded_zero2(job: Job) -> None:
    by_hand = (discarding._by_hand, _by_hand_if_there, _by_hand_to_zero, _deleted)
    _first(job, discarding._by_engine, discarding._by_module, _by_module_to_zero, _by_parts, *by_hand, after=0)


@scenario("gradients are looked at after each micro-batch", accumulation=("2", "3"), pinned=_FIRST)
def looked_at_inside(job: Job) -> None:
    engine = job.engine(job.MLP())

    def backward(loss: Any) -> None:
        engine.backward(loss)
        _looked_at(engine)

    job.steps(engine, range(4), backward=backward)


@scenario("a branch is only used by first micro-batches that are discarded, the other by those that are trained")
@settings(
    stage="012",
    accumulation=("2",),
    precision=("fp32", "fp16"),
    pinned=[{"stage": stage, "offload": "optimizer", "accumulation": "2"} for stage in "21"],
)
def branch_discarded(job: Job) -> None:
    engine = job.engine(job.model(lambda self, x, which: (self.first, self.second)[which](x),
                                  first=job.MLP(), second=job.MLP(seed=1)))  # fmt: skip
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            engine.backward(job.loss(engine, batch, micro))
            if micro == 0:
                discarding._by_hand(engine)
            engine.step()
        job.look(engine, f"step {step}")
