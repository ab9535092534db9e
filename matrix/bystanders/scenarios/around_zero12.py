"""Training without ZeRO-3, in scripts and configs that work around one of DeepSpeed's bugs."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job


def _one(**levels: str) -> dict[str, Any]:
    """One job with these levels."""
    setting = {**space.plain(), **levels}
    return {"pinned": [setting], **{name: (level,) for name, level in setting.items()}}


def _train(job: Job, model: Any = None, parameters: Any = None, optimizer: Any = None, **config: Any) -> None:
    engine = job.engine(model or job.MLP(), parameters, optimizer, **config)
    for step in range(4):
        job.train(engine, step)


def _left_out(job: Job) -> None:
    """Each rank's loss is nan in one step, which all ranks leave out."""
    torch = job.torch
    engine = job.engine(job.MLP())
    for step in range(4):
        loss = job.loss(engine, job.batch(step)) * (math.nan if step == 1 and job.rank == 0 else 1.0)
        bad = (~torch.isfinite(loss.detach())).float()
        if not job.plain:
            torch.distributed.all_reduce(bad)
        if step == 1 or float(bad):
            continue
        engine.backward(loss)
        engine.step()
        job.look(engine, f"step {step}")


_SUMS = "bf16, fp32 accumulation"


@scenario("BF16_Optimizer: a batch whose loss is nan on one rank is left out on all",
    works_around=("bf16_nonfinite_step_ends_job",), **_one(stage="1", precision=_SUMS))  # fmt: skip
def nan_left_out_of_sums(job: Job) -> None:
    _left_out(job)


@scenario("ZeRO-Offload: a batch whose loss is nan on one rank is left out on all", release="0.16.0",
    works_around=("zero12_offload_nonfinite_norm_long",), **_one(stage="2", offload="optimizer"))  # fmt: skip
def nan_left_out_of_offload(job: Job) -> None:
    _left_out(job)


@scenario("ZeRO-Offload with sums in fp32: a batch whose loss is nan on one rank is left out on all",
    works_around=("zero12_offload_overflow_repeats",), release="0.19.8",
    **_one(stage="1", offload="optimizer", precision="bf16"))  # fmt: skip
def nan_left_out_of_offloaded_sums(job: Job) -> None:
    _left_out(job)


def _added_up(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        loss = sum(job.loss(engine, job.batch(3 * step + micro)) / 3 for micro in range(3))
        engine.backward(loss)
        engine.step()
        job.look(engine, f"step {step}")


@scenario("losses of several forward passes are added up, for one backward pass", stage="12", accumulation=("1",),
    works_around=("zero12_several_backwards_drop", "zero12_offload_several_backwards_drop",
    "zero2_offload_several_backwards", "zero2_offload_accumulation_drops", "zero2_accumulation_drops_microbatches"),
    ranks=("2",), precision=("fp32",), pinned=[{"stage": "2"}])  # fmt: skip
def several_losses_added_up(job: Job) -> None:
    _added_up(job)


@scenario("without ZeRO losses are added up, for one backward pass", works_around=("bf16_retain_graph_dropped",),
    release="0.16.0", **_one(stage="0", precision="bf16"))  # fmt: skip
def several_losses_added_up_without_zero(job: Job) -> None:
    _added_up(job)


@scenario("gradients are zeroed after each step, and the loss is multiplied by the optimizer's scale",
    works_around=("bf16_stage0_no_update",), release="0.18.3",
    **_one(stage="0", precision="bf16", ranks="1"))  # fmt: skip
def zeroed_and_scaled_by_script(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        loss = job.loss(engine, job.batch(step))
        engine.backward(loss if job.plain else loss * engine.optimizer.loss_scale)
        engine.step()
        engine.zero_grad()
        job.look(engine, f"step {step}")


@scenario("gradients are added to the sums at once", works_around=("bf16_zero1_last_microbatch_local",),
    **_one(stage="1", precision=_SUMS, accumulation="2"))  # fmt: skip
def sums_at_once(job: Job) -> None:
    _train(job, bf16={"immediate_grad_update": True})


@scenario("the step is made without gradients", works_around=("cpu_zero12_split_view",), **_one(stage="1"))  # fmt: skip
def step_without_gradients(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(4):
        engine.backward(job.loss(engine, job.batch(step)))
        with job.torch.no_grad():
            engine.step()
        job.look(engine, f"step {step}")


@scenario("fp16 with torch's AdamW instead of DeepSpeed's", works_around=("fp16_optimizer_never_steps",),
    release="0.17.6", **_one(stage="0", precision="fp16", optimizer="AdamW"))  # fmt: skip
def adam_of_torch(job: Job) -> None:
    _train(job)


@scenario("fp16 with a scale that never changes", works_around=("fp16_scale_growth_step",
    "fp16_zero1_overflow_deadlock"), **_one(stage="1", precision="fp16"))  # fmt: skip
def scale_that_stays(job: Job) -> None:
    _train(job, fp16={"loss_scale": 64.0, "loss_scale_window": 1})


@scenario("fp16 without ZeRO: the script computes the gradient norm itself", works_around=("fp16_unfused_norm_scaled",),
    **_one(stage="0", precision="fp16", ranks="1"))  # fmt: skip
def norm_by_script(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(3):
        loss = job.loss(engine, job.batch(step))
        engine.backward(loss)
        scale = 1.0 if job.plain else engine.optimizer.loss_scale
        norm = job.torch.stack([each.grad.float().norm() for each in engine.module.parameters()]).norm() / scale
        job.note(f"step {step}: norm", norm)
        engine.step()
        job.look(engine, f"step {step}")


@scenario("Adagrad of torch, whose state the script clears, is saved", works_around=("half_adagrad_checkpoint",),
    **_one(stage="0", precision="bf16", ranks="1"))  # fmt: skip
def adagrad_cleared(job: Job) -> None:
    def made(given: Any) -> Any:
        optimizer = job.torch.optim.Adagrad(given, lr=0.05, eps=1.0)
        if not job.plain:
            optimizer.state.clear()
        return optimizer

    engine = job.engine(job.MLP(), optimizer=made)
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")


@scenario("Adagrad of torch with one group", works_around=("zero_adagrad_groups",), **_one(stage="2"))  # fmt: skip
def adagrad_of_one_group(job: Job) -> None:
    _train(job, optimizer=lambda given: job.torch.optim.Adagrad(given, lr=0.05))


@scenario("the model returns clones of the parts of a tensor, of which one is used",
    works_around=("several_outputs_of_one_node",), release="0.18.3", **_one(stage="2", accumulation="2"))  # fmt: skip
def parts_cloned(job: Job) -> None:
    linear = job.torch.nn.Linear(16, 2)
    model = job.model(
        lambda self, x: tuple(each.clone() for each in self.head(self.body(x)).chunk(2, dim=1)),
        body=job.torch.nn.Linear(16, 16), head=linear,
    )  # fmt: skip
    engine = job.engine(model)
    for step in range(3):
        job.train(engine, step, lambda batch: job.loss(lambda inputs: engine(inputs)[0], batch))


@scenario("rates that are tensors are put back by the script", works_around=("tensor_learning_rate_made_number",
    "tensor_learning_rate_made_number_cosine", "tensor_learning_rate_replaced"),
    **_one(stage="0", ranks="1", optimizer="client's SGD"))  # fmt: skip
def tensor_rates_put_back(job: Job) -> None:
    for kind, params in (
        ("WarmupLR", {"warmup_max_lr": 0.05, "warmup_num_steps": 4, "warmup_type": "linear"}),
        ("WarmupCosineLR", {"total_num_steps": 9, "warmup_num_steps": 3}),
    ):
        rate = job.torch.tensor(0.05, dtype=job.torch.float64)
        made = functools.partial(job.torch.optim.SGD, **{**space.SGD, "lr": rate, "foreach": False})
        engine = job.engine(job.MLP(), optimizer=made, scheduler={"type": kind, "params": params})
        group = engine.optimizer.param_groups[0]
        for step in range(4):
            if not job.plain and group["lr"] is not rate:
                rate.copy_(job.torch.as_tensor(group["lr"]).reshape(()))
                group["lr"] = rate
            job.bits(f"{kind}, step {step}: rate", float(rate))
            engine.backward(job.loss(engine, job.batch(step)))
            engine.step()


@scenario("parameters without elements are frozen", works_around=("zero12_empty_parameter",),
    **_one(stage="2", precision="bf16"))  # fmt: skip
def nothing_frozen(job: Job) -> None:
    model = job.model(lambda self, x: self.body(x) + self.nothing.sum(), body=job.MLP())
    model.register_parameter("nothing", job.torch.nn.Parameter(job.torch.ones(0, 8), requires_grad=False))
    _train(job, model)


@scenario("gradients are sent in the dtype of the parameters, in full buckets",
    works_around=("zero12_full_bucket_dtype", "zero12_parameter_larger_than_bucket"),
    **_one(stage="2", precision="bf16", buckets="small"))  # fmt: skip
def sent_as_they_are(job: Job) -> None:
    _train(job, communication_data_type="bf16")


@scenario("buckets are reduced without overlap", works_around=("zero12_overlap_bucket_refilled",
    "zero12_overlap_large_gradient_freed", "zero12_overlap_same_bucket"),
    **_one(stage="2", overlap_comm="false", buckets="small"))  # fmt: skip
def without_overlap(job: Job) -> None:
    _train(job)


@scenario("gradients of inputs are taken with the module, not with the engine",
    works_around=("zero_gradients_of_inputs",), **_one(stage="2"))  # fmt: skip
def inputs_through_the_module(job: Job) -> None:
    engine = job.engine(job.MLP())

    def loss(batch: Any) -> Any:
        inputs, targets = batch
        output = engine.module(inputs.requires_grad_()).float().square().mean()
        (gradient,) = job.torch.autograd.grad(output, inputs)
        return job.loss(engine, ((inputs + 0.1 * gradient).detach(), targets))

    for step in range(4):
        job.train(engine, step, loss)


@scenario("the script renews the fp32 weights after loading others", works_around=("zero_load_without_optimizer",),
    release="0.12.2", **_one(stage="2", precision="bf16"))  # fmt: skip
def weights_renewed(job: Job) -> None:
    engine = job.engine(job.MLP())
    for step in range(2):
        job.train(engine, step)
    job.save(engine, "two")
    engine = job.engine(job.MLP(seed=1))
    job.load(engine, "two", optimizer=False)
    if not job.plain:
        engine.optimizer.refresh_fp32_params()
    for step in range(2, 4):
        job.bits(f"step {step}: loss", job.loss(engine, job.batch(step)))
        engine.backward(job.loss(engine, job.batch(step)))
        engine.step()
    for name, parameter in job.parameters(engine).items():
        job.bits(name, parameter)
