"""PipelineEngine.eval_batch with a loss function that returns several tensors: an error, or sums of the wrong ones.

Why: the loss of a micro-batch may be a tuple or list, as may be what the last layer returns with `compute_loss=False`.
    To sum them up, `eval_batch` unpacks each micro-batch's list as if it were an index and a tensor: ValueError or
    IndexError or, for two values of which the first is an integer, a wrong result. Also, `bcast_loss`, on by default,
    expects one tensor, and the losses are added to the previous training step's loss, a single tensor.
How: each of the tensors is summed up over the micro-batches. With one stage nothing is broadcast; the monitor is given
    the first. With several stages, the others do not know how many tensors come: the last one raises a ValueError that
    names bcast_loss=False, and the others wait for it, as they did before.
Changes: jobs that evaluate two tensors of which the first is an integer. Parameters and checkpoints do not change, nor
    does what a resumed job computes.
Workaround: Scripts return one loss, or before the first training step stack the losses to one tensor, or pass
    `reduce_output=None`. You can keep it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.pipe.engine:PipelineEngine"
_UNPACKED = "for idx, out in outputs:\n    reduced[idx] += out"


def broadcast(engine: Any, output: Any) -> Any:
    """What `_bcast_pipe_scalar` returns, of each tensor."""
    if not isinstance(output, (list, tuple)):
        return engine._bcast_pipe_scalar(output)
    if engine.num_stages > 1:
        raise ValueError(
            f"pipeline_eval_several_losses: the loss of eval_batch consists of {len(output)} tensors, but the other "
            "stages expect one: pass bcast_loss=False, and do not use a monitor"
        )
    return [broadcast(engine, each) for each in output]


def first(output: Any) -> Any:
    """The loss for the monitor, which takes one."""
    while isinstance(output, (list, tuple)) and output:
        output = output[0]
    return output


PATCH = Patch(
    title="PipelineEngine.eval_batch fails if the loss function returns several tensors: too many values to unpack",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            f"{_ENGINE}._reduce_outputs",
            replace=_UNPACKED,
            code="for each in outputs:\n    for idx, out in enumerate(each):\n        reduced[idx] += out",
            effect="the tensors of a loss were summed separately",
        ),
        Edit(  # that of the training before has one tensor
            f"{_ENGINE}.eval_batch", after="self._compute_loss = compute_loss", code="self.total_loss = None"
        ),
        Edit(
            f"{_ENGINE}.eval_batch",
            replace="eval_output = self._bcast_pipe_scalar(eval_output)",
            code="eval_output = broadcast(self, eval_output)",
            uses=(broadcast,),
        ),
        Edit(
            f"{_ENGINE}.eval_batch",
            before="if self.global_rank == 0 and self.monitor.enabled:\n    ...",
            code="monitored = first(eval_output)",
            uses=(first,),
        ),
        Edit(f"{_ENGINE}.eval_batch", replace="eval_output.mean", code="monitored.mean"),
    ),
    symptom=r"in _reduce_outputs\n.*for idx, out in outputs:\n(.*\n)?ValueError: ",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/3750": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/1091": "introduced",
    },
    present=(Source(f"{_ENGINE}._reduce_outputs", "reduced = [torch.zeros_like(o) for o in outputs[0]]"),),
    config=lambda job: job.pipeline is True,
    ranks=2,
    device="cpu",
)

_MICRO_BATCHES = 3


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_MICRO_BATCHES)]
    model: Any = lab.models.MLP(depth=3)

    def loss(outputs: Any, targets: Any) -> Any:
        found = outputs - targets
        return found.pow(2).mean(), found.abs().mean(), outputs.mean()

    with torch.no_grad():
        right = torch.tensor([loss(model(inputs), targets) for inputs, targets in batches]).mean(0)
    losses = loss, lambda *given: loss(*given)[:2]
    for stages, of, bcast in itertools.product((1, 2), losses, (True, False)):
        if stages == 2 and bcast:
            continue
        module = lab.deepspeed.pipe.PipelineModule(
            layers=[*model.blocks, model.head], num_stages=stages, loss_fn=of, partition_method="uniform"
        )
        config = {
            "gradient_accumulation_steps": _MICRO_BATCHES,
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "csv_monitor": {"enabled": stages == 1, "output_path": str(lab.tmp)},
        }
        engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
        if bcast and of is loss:
            engine.total_loss = torch.zeros(())  # as a training step leaves it, which 0.12 does not make on a CPU
        try:
            seen = engine.eval_batch(iter(batches), bcast_loss=bcast)
        except (ValueError, TypeError, IndexError) as error:
            raise BugPresent(f"a loss of {'three' if of is loss else 'two'} tensors: {error}") from error
        if engine.is_last_stage():
            found = torch.stack([each.reshape(()) for each in seen])
            difference = (found - right[: len(found)]).abs().max()
            assert difference < 1e-5, f"the losses are {seen}, not {right}"
    return "eval_batch, of one stage and of two, returns the means of each of two and three losses, as PyTorch has them"
