"""Models made under zero.Init, whose linear layers then run in an autograd function of DeepSpeed's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

# in half precision the weights are drawn in it: others than those of plain PyTorch
_HERE: Any = {"stage": "3", "precision": ("fp32",)}


def _trained(job: Job, make: Callable[[], Any], train: Callable[[Any, int], None]) -> None:
    linear = job.torch.nn.functional.linear
    try:
        if job.plain:
            model = make()
        else:
            config = {**space.config(job.setting), "train_micro_batch_size_per_gpu": 4}
            with job._lab.deepspeed.zero.Init(config_dict_or_path=config):
                model = make()
        engine = job.engine(model)
        for step in range(3):
            train(engine, step)
    finally:
        job.torch.nn.functional.linear = linear  # zero.Init leaves its own


@scenario("a model made under zero.Init", ranks=("1",), **_HERE)  # without padding, which nothing initializes
def made_in_parts(job: Job) -> None:
    _trained(job, job.MLP, lambda engine, step: job.train(engine, step))


@scenario("a model made under zero.Init, trained on tokens", **_HERE)
def tokens_in_parts(job: Job) -> None:
    _trained(job, job.Transformer, lambda engine, step: job.train_on_tokens(engine, step))


@scenario("a model made under zero.Init, of which one block is frozen, and the bias of another", **_HERE)
def frozen_in_parts(job: Job) -> None:
    def make() -> Any:
        model = job.MLP()
        model.blocks[0].requires_grad_(False)
        model.blocks[1][0].bias.requires_grad_(False)  # type: ignore[index,unused-ignore]
        return model

    _trained(job, make, lambda engine, step: job.train(engine, step))
