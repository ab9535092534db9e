"""PipelineEngine.eval_batch(return_logits=True) returns the logits of the last micro-batch only.

Why: the loss is that of all micro-batches. Of what the last layer returns, each micro-batch's takes the place of the
    one before. Nothing says so.
How: the last stage returns the outputs of all micro-batches one below the other, tuples tensor by tensor. Where they do
    not fit together, the last one's alone, as before. Off unless named: a script that knows what it gets pairs the
    logits with the labels of the last micro-batch, and the logits of all take as many times the memory.
Changes: the second result of `eval_batch(return_logits=True)` with several micro-batches. Losses, parameters and
    checkpoints do not change.
Workaround: Scripts evaluate one micro-batch at a time, with `num_micro_batches=1` or `engine.micro_batches` set to 1.
    Both can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.pipe.engine:PipelineEngine"


def joined(before: Any, outputs: Any) -> Any:
    """The outputs of the micro-batches up to this one."""
    import torch

    if isinstance(before, tuple) and isinstance(outputs, tuple) and len(before) == len(outputs):
        return tuple(map(joined, before, outputs))
    if not torch.is_tensor(before) or not torch.is_tensor(outputs):
        return outputs
    fit = before.dim() and before.shape[1:] == outputs.shape[1:] and before.dtype == outputs.dtype
    return torch.cat([before, outputs]) if fit else outputs


PATCH = Patch(
    title="PipelineEngine.eval_batch(return_logits=True) returns the logits of the last micro-batch only",
    severity=Severity.WRONG_RESULT,
    default=False,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(f"{_ENGINE}.eval_batch", after="self.eval_return_logits = return_logits", code="self.outputs = None"),
        Edit(
            f"{_ENGINE}._exec_forward_pass",
            replace="self.outputs = outputs",
            code="self.outputs = joined(self.outputs, outputs)",
            uses=(joined,),
            effect="the logits of a micro-batch were added to those before; they would have taken their place",
            when="self.outputs is not None",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/1899": "introduced"},
    present=(Source(f"{_ENGINE}.eval_batch", "outputs = self.outputs"),),
    config=lambda job: job.pipeline is True and job.accumulates(),
    device="cpu",
)

_MICRO_BATCHES = 3


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_MICRO_BATCHES)]
    model: Any = lab.models.MLP(depth=3)
    with torch.no_grad():
        right = [model(inputs) for inputs, _ in batches]
    module = lab.deepspeed.pipe.PipelineModule(
        layers=[*model.blocks, model.head], num_stages=1, loss_fn=torch.nn.functional.mse_loss
    )
    config = {
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
    for _ in range(2):
        _, logits = engine.eval_batch(iter(batches), return_logits=True)
        if logits.shape == right[-1].shape and torch.allclose(logits, right[-1]):
            raise BugPresent(f"of {_MICRO_BATCHES} micro-batches, eval_batch returns the logits of the last")
        assert torch.allclose(logits, torch.cat(right)), f"the logits are {logits}, not {right}"
    return f"eval_batch returns the logits of all {_MICRO_BATCHES} micro-batches"
