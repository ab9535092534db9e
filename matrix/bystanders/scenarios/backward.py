"""Backward passes: hooks, recomputing, compiling, gradients that a script sets or changes."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from matrix.bystanders.scenario import Job, scenario, settings
from matrix.bystanders.space import one_job

_ACCUMULATING = [{"stage": stage, "accumulation": "3", "ranks": "1"} for stage in "012"]
_MANY = [{"stage": stage, "offload": "optimizer", "ranks": "2"} for stage in "12"]
_FP32_SUMS = [
    {"stage": "1", "precision": "bf16, fp32 accumulation", "accumulation": "3", "ranks": ranks} for ranks in "12"
]


def _checkpoint(function: Any, *args: Any, reentrant: bool) -> Any:
    return importlib.import_module("torch.utils.checkpoint").checkpoint(function, *args, use_reentrant=reentrant)


def _mse(job: Job, output: Any, targets: Any) -> Any:
    return job.torch.nn.functional.mse_loss(output.float(), targets)


@scenario("the engine is called inside a reentrant checkpoint", pinned=_ACCUMULATING)
def engine_inside_checkpoint(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        inputs, targets = batch
        return _mse(job, _checkpoint(engine, inputs.requires_grad_(), reentrant=True), targets)

    job.steps(engine, range(4), loss)


@scenario("the engine is called inside a non-reentrant checkpoint", pinned=_ACCUMULATING)
def engine_inside_new_checkpoint(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(4), lambda batch: _mse(job, _checkpoint(engine, batch[0], reentrant=False), batch[1]))


def _transformer(job: Job, checkpointing: str) -> None:
    engine = job.engine(job.Transformer(checkpointing=checkpointing))
    for step in range(4):
        job.train_on_tokens(engine, step)


@scenario("reentrant gradient checkpointing of each block", pinned=_FP32_SUMS)
def reentrant_checkpointing(job: Job) -> None:
    _transformer(job, "reentrant")


@scenario("non-reentrant gradient checkpointing of each block", pinned=_FP32_SUMS)
def checkpointing(job: Job) -> None:
    _transformer(job, "non-reentrant")


@scenario("the loss's hook runs the model again and calls backward, as with cached losses", pinned=_ACCUMULATING)
def cached_loss(job: Job) -> None:
    torch = job.torch
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        parts = batch[0].chunk(2)
        with torch.no_grad():
            outputs = [engine(part) for part in parts]
        outputs = [each.detach().float().requires_grad_() for each in outputs]
        value = _mse(job, torch.cat(outputs), batch[1])
        value.backward()

        def through_the_model(gradient: Any) -> None:
            with torch.enable_grad():
                for part, output in zip(parts, outputs):
                    (engine(part).float() * output.grad * gradient).sum().backward()

        result = value.detach().requires_grad_()
        result.register_hook(through_the_model)
        return result * 1.0  # engine.backward() does not accept a leaf

    job.steps(engine, range(4), loss)


@scenario("gradients by the outputs are cached, then each part is run through the model with engine.backward()")
def cached_gradients(job: Job) -> None:
    torch = job.torch
    engine = job.engine(job.MLP())
    for step in range(4):
        for inputs, targets in job.batches(step):
            with torch.no_grad():
                output = engine(inputs)
            output = output.detach().float().requires_grad_()
            _mse(job, output, targets).backward()
            for part, gradient in zip(inputs.chunk(2), output.grad.chunk(2)):
                engine.backward((engine(part).float() * gradient).sum())
            engine.step()
        job.look(engine, f"step {step}")


@scenario("two backward passes on one loss, with retain_graph", pinned=_MANY)
def loss_twice(job: Job) -> None:
    engine = job.engine(job.MLP())

    def backward(loss: Any) -> None:
        engine.backward(loss, retain_graph=True)
        engine.backward(loss)

    job.steps(engine, range(4), backward=backward)


def _two_losses(job: Job, model: Any, losses: Any) -> None:
    engine = job.engine(model)
    for step in range(4):
        for micro, batch in enumerate(job.batches(step)):
            first, second = losses(engine, batch)
            engine.backward(first, retain_graph=True)
            engine.backward(second)
            engine.step()
            job.note(f"step {step}: losses of micro-batch {micro}", job.torch.stack([first, second]))
        job.look(engine, f"step {step}")


@scenario("two losses of one output, each with its own engine.backward()", pinned=_MANY)
def two_losses(job: Job) -> None:
    def losses(engine: Any, batch: Any) -> Any:
        output = engine(batch[0])
        return _mse(job, output, batch[1]), output.float().abs().mean()

    _two_losses(job, job.MLP(), losses)


@scenario("two heads on one body, each loss with its own engine.backward()", pinned=_MANY)
def two_heads(job: Job) -> None:
    nn = job.torch.nn
    body = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh())

    def forward(self: Any, x: Any) -> Any:
        x = self.body(x)
        return self.left(x), self.right(x)

    def losses(engine: Any, batch: Any) -> Any:
        left, right = engine(batch[0])
        return _mse(job, left, batch[1]), _mse(job, right, -batch[1])

    _two_losses(job, job.model(forward, body=body, left=nn.Linear(16, 1), right=nn.Linear(16, 1)), losses)


@scenario("several forward passes, each with engine.backward(), before one step", pinned=_MANY)
def several_backwards(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        for micro in range(job.accumulation):
            for part in range(3):
                value = job.loss(engine, job.batch(100 * step + 10 * micro + part))
                engine.backward(value)
                job.note(f"step {step}: loss of part {part} of micro-batch {micro}", value)
            engine.step()
        job.look(engine, f"step {step}")


@scenario("two forward passes, then both backward passes", pinned=_MANY)
def forwards_first(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        for micro in range(job.accumulation):
            losses = [job.loss(engine, job.batch(100 * step + 10 * micro + part)) for part in range(2)]
            for each in losses:
                engine.backward(each)
            engine.step()
            job.note(f"step {step}: losses of micro-batch {micro}", job.torch.stack(losses))
        job.look(engine, f"step {step}")


@scenario("before each step, inputs are moved along their gradient from torch.autograd.grad")
@settings(precision=["fp32", "bf16"])
def adversarial_inputs(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        inputs, targets = batch[0].clone().requires_grad_(), batch[1]
        (gradient,) = job.torch.autograd.grad(job.loss(engine, (inputs, targets)), inputs)
        moved = inputs.detach() + 0.3 * gradient / gradient.norm()
        return job.loss(engine, (moved, targets))

    job.steps(engine, range(4), loss)


@scenario(
    "a gradient penalty on the inputs, as in WGAN-GP",
    stage="012",
    precision=["fp32", "bf16"],
    accumulation="1",  # DeepSpeed divides that gradient by it since 0.18.3
)
def gradient_penalty(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        inputs = batch[0].clone().requires_grad_()
        output = engine(inputs)
        (gradient,) = job.torch.autograd.grad(output.float().sum(), inputs, create_graph=True)
        return _mse(job, output, batch[1]) + 0.1 * (gradient.float().norm(dim=1) - 1).square().mean()

    job.steps(engine, range(4), loss)


@scenario("the gradient norm of a held-out batch is read with torch.autograd.grad")
@settings(stage="012", precision=["fp32", "bf16"])
def norm_of_another_batch(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        value = job.loss(engine, job.batch(1000))
        gradients = job.torch.autograd.grad(value, list(engine.module.parameters()))
        norms = job.torch.stack([each.float().norm() for each in gradients])
        job.note(f"step {step}: norms of a held-out batch", norms / norms.norm())
        job.train(engine, step)


def _by_hand(job: Job, engine: Any, loss: Any) -> None:
    """loss.backward(), where the release supports it."""
    if job.plain or job.stage == 0 or not hasattr(engine, "scale"):
        engine.backward(loss)
    else:
        engine.scale(loss).backward()


@scenario("loss.backward() instead of engine.backward()")
@settings(stage="123", works_around=("dict_output_double_scaling_direct",))
def by_hand(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(4), backward=lambda loss: _by_hand(job, engine, loss))


@scenario("loss.backward() and engine.backward() alternate", stage="123")
def by_hand_by_turns(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        job.train(engine, step, backward=(lambda loss: _by_hand(job, engine, loss)) if step % 2 else engine.backward)


def _with_loss(job: Job, kind: str) -> Any:
    def forward(self: Any, inputs: Any, targets: Any) -> Any:
        logits = self.inner(inputs)
        loss = _mse(job, logits, targets)
        return {"dict": {"loss": loss, "logits": logits}, "tuple": (loss, logits), "loss": loss}[kind]

    return job.model(forward, inner=job.MLP())


@scenario("the model returns a dictionary with its loss and logits", pinned=_ACCUMULATING)
def dictionary(job: Job) -> None:
    engine = job.engine(_with_loss(job, "dict"))
    job.steps(engine, range(4), lambda batch: engine(*batch)["loss"])


@scenario("the model returns a tuple of its loss and logits", pinned=_ACCUMULATING)
def loss_and_logits(job: Job) -> None:
    engine = job.engine(_with_loss(job, "tuple"))
    job.steps(engine, range(4), lambda batch: engine(*batch)[0])


@scenario("the model returns its loss", pinned=_ACCUMULATING)
def loss_alone(job: Job) -> None:
    engine = job.engine(_with_loss(job, "loss"))
    job.steps(engine, range(4), lambda batch: engine(*batch))


@scenario("the script adds a term computed from the logits to the loss in the model's dictionary", pinned=_ACCUMULATING)
def loss_with_a_term(job: Job) -> None:
    engine = job.engine(_with_loss(job, "dict"))

    def loss(batch: Any) -> Any:
        result = engine(*batch)
        return result["loss"] + 0.1 * result["logits"].float().square().mean()

    job.steps(engine, range(4), loss)


@scenario("loss.backward() on the loss in the model's dictionary", stage="123")
def dictionary_by_hand(job: Job) -> None:
    engine = job.engine(_with_loss(job, "dict"))
    job.steps(engine, range(4), lambda batch: engine(*batch)["loss"], backward=lambda loss: _by_hand(job, engine, loss))


@scenario("the loss in the model's dictionary, from inside a reentrant checkpoint", pinned=_ACCUMULATING)
def dictionary_inside_checkpoint(job: Job) -> None:
    engine = job.engine(_with_loss(job, "tuple"))
    job.steps(
        engine, range(4), lambda batch: _checkpoint(engine, batch[0].requires_grad_(), batch[1], reentrant=True)[0]
    )


@scenario("the loss includes a penalty on parameters that is in no output", pinned=_ACCUMULATING, stage="012")
def penalty_on_parameters(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        penalty = sum(each.float().square().sum() for each in engine.module.head.parameters())
        return job.loss(engine, batch) + 0.1 * penalty

    job.steps(engine, range(4), loss)


@scenario("the script divides by the accumulation steps itself, with scale_wrt_gas=False", pinned=_ACCUMULATING)
def divided_by_the_script(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(4), backward=lambda loss: engine.backward(loss / job.accumulation, scale_wrt_gas=False))


@scenario("gradients are accumulated in fp32", pinned=_FP32_SUMS, stage="1", precision=["bf16, fp32 accumulation"])
def fp32_sums(job: Job) -> None:
    engine = job.engine(job.MLP())
    job.steps(engine, range(6))


_HERE: Any = {"stage": "3", "accumulation": ("1", "2"), "ranks": ("1", "2")}
_PINNED = [{"stage": "3", "offload": "optimizer", "clipping": "on"}, {"stage": "3", "offload": "optimizer"}]


def _train(job: Job, part: str, factor: float) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        batches = job.batches(step)
        for micro, batch in enumerate(batches):
            engine.backward(job.loss(engine, batch))
            if micro == len(batches) - 1:
                _multiply(job, engine, part, factor)
            engine.step()
        job.look(engine, f"step {step}")


def _multiply(job: Job, engine: Any, part: str, factor: float) -> None:
    for parameter in engine.module.parameters():
        if part == "full" and tuple(getattr(parameter, "ds_shape", parameter.shape)) == (1,):
            continue  # two ranks cannot set it
        if job.plain:
            parameter.grad.mul_(factor)
        else:
            utils = importlib.import_module("deepspeed.utils")
            value = getattr(utils, f"safe_get_{part}_grad")(parameter)
            getattr(utils, f"safe_set_{part}_grad")(parameter, value * factor)


@scenario("each gradient is doubled with safe_set_full_grad()", pinned=_PINNED, **_HERE)
def full_gradients_doubled(job: Job) -> None:
    _train(job, "full", 2.0)


@scenario("each gradient is set to what it is with safe_set_full_grad()", pinned=_PINNED, **_HERE)
def full_gradients_kept(job: Job) -> None:
    _train(job, "full", 1.0)


@scenario("each gradient is doubled with safe_set_local_grad()", pinned=_PINNED, **_HERE)
def local_gradients_doubled(job: Job) -> None:
    _train(job, "local", 2.0)


@scenario("each gradient is set to what it is with safe_set_local_grad()", pinned=_PINNED, **_HERE)
def local_gradients_kept(job: Job) -> None:
    _train(job, "local", 1.0)


@scenario("blocks are checkpointed by deepspeed.checkpointing.non_reentrant_checkpoint", stage="03")
def non_reentrant_of_deepspeed(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(2)]

    def checkpoint(block: Any, x: Any) -> Any:
        if job.plain:
            return block(x)
        import deepspeed  # type: ignore[import-not-found,unused-ignore]

        return deepspeed.checkpointing.non_reentrant_checkpoint(block, x)

    def forward(self: Any, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x)
        return self.head(x)

    model = job.model(forward, blocks=torch.nn.ModuleList(blocks), head=torch.nn.Linear(16, 1, bias=False))
    engine = job.engine(model)
    job.steps(engine, range(4))


@scenario("deepspeed.checkpointing profiles blocks that begin with a LayerNorm", stage="013", release="0.18.9")
def profiled_checkpoints(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(4)]

    def forward(self: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        for block, name in zip(self.blocks, ("checkpoint", "non_reentrant_checkpoint") * 2):
            x = block(x) if job.plain else getattr(importlib.import_module("deepspeed").checkpointing, name)(block, x)
        return self.head(x)

    engine = job.engine(job.model(forward, blocks=torch.nn.ModuleList(blocks), head=torch.nn.Linear(16, 1, bias=False)))
    if not job.plain:
        importlib.import_module("deepspeed").checkpointing.configure(None, profile=True)
    job.steps(engine, range(4))


@scenario("blocks enter autocast themselves, within deepspeed.checkpointing")
@settings(
    works_around=("checkpoint_recomputed_without_autocast",),
    reference=False,
    release="0.18.9",
    **one_job(stage="0", ranks="1"),
)
def autocast_within_checkpoint(job: Job) -> None:
    torch = job.torch
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(2)]
    checkpointing = importlib.import_module("deepspeed").checkpointing

    def run(block: Any, x: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return block(x)

    def forward(self: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            for block, name in zip(self.blocks, ("checkpoint", "non_reentrant_checkpoint")):
                x = getattr(checkpointing, name)(partial(run, block), x)
            return self.head(x)

    engine = job.engine(job.model(forward, blocks=torch.nn.ModuleList(blocks), head=torch.nn.Linear(16, 1)))
    job.steps(engine, range(3))


# with ZeRO-3 its hooks are recompiled for half a minute
_FITS: Any = {"stage": "012", "accumulation": ("1", "2")}


def _tolerant() -> None:
    """torch 2.13 cannot trace torch.cuda.synchronize(None), which the engine's hook before a forward pass calls."""
    importlib.import_module("torch._dynamo").config.suppress_errors = True


@scenario("the engine compiles the whole model", pinned=[{"stage": "1"}], **_FITS)
def compiled_by_engine(job: Job) -> None:
    _tolerant()
    engine = job.engine(job.MLP())
    engine.compile(backend="eager")
    job.steps(engine, range(3))


@scenario("the model is compiled before the engine is created", **_FITS)
def compiled_before(job: Job) -> None:
    _tolerant()
    model = job.MLP()
    model.compile(backend="eager")
    engine = job.engine(model)
    job.steps(engine, range(3))


def _of_deepspeed(job: Job, **options: bool) -> None:
    """A residual model that gives its checkpoints copies, and the number bound to the function."""
    torch = job.torch
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(2)]
    checkpointing: Any = None

    def run(block: Any, factor: float, x: Any) -> Any:
        return block(x) * factor

    def forward(self: Any, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            function = partial(run, block, 0.5)
            x = x + (checkpointing.checkpoint(function, x.clone()) if checkpointing else function(x))
        return self.head(x)

    first, head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1, bias=False)
    engine = job.engine(job.model(forward, first=first, blocks=torch.nn.ModuleList(blocks), head=head))
    if not job.plain:
        import deepspeed

        checkpointing = deepspeed.checkpointing
        checkpointing.configure(None, None, **options)
    job.steps(engine, range(3))


@scenario("deepspeed.checkpointing partitions copies of a residual model's activations", stage="03", release="0.18.9")
@settings(works_around=("checkpoint_empties_inputs", "partition_activations_number"))
def partitioned_activations(job: Job) -> None:
    _of_deepspeed(job, partition_activations=True)


@scenario("deepspeed.checkpointing keeps copies of a residual model's activations on the CPU")
@settings(works_around=("cpu_checkpointing_empties_inputs",), stage="03", release="0.19.8")
def activations_on_cpu(job: Job) -> None:
    _of_deepspeed(job, checkpoint_in_cpu=True)
