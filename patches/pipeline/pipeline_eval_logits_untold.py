"""PipelineEngine.eval_batch(return_logits=True) silently returns only the logits of the last micro-batch.

Why: the loss covers all micro-batches. Of what the last layer returns, each micro-batch's takes the place of the one
    before.
How: the first time that there are several micro-batches rank 0 warns once, and says what to do. What is returned stays:
    a script that knows what it gets pairs the logits with the labels of the last micro-batch.
Workaround: Scripts evaluate one micro-batch at a time, with `num_micro_batches=1` or `engine.micro_batches` set to 1.
    You can keep it, and are not warned.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

from .._warn_once import warn_once

if TYPE_CHECKING:
    from dsfix.lab import Lab

_EVAL = "deepspeed.runtime.pipe.engine:PipelineEngine.eval_batch"


def tell_of_logits(micro_batches: int) -> None:
    if micro_batches > 1:
        ran(__name__)
        warn_once(
            __name__,
            f"eval_batch(return_logits=True) evaluates {micro_batches} micro-batches but returns only the last one's "
            "logits. To get all of them, evaluate one micro-batch per call, with engine.micro_batches set to 1",
        )


PATCH = Patch(
    title="PipelineEngine.eval_batch(return_logits=True) silently returns only the last micro-batch's logits",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _EVAL,
            before="outputs = self.outputs",
            code="tell_of_logits(sched.micro_batches)",
            uses=(tell_of_logits,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/1899": "introduced"},
    present=(Source("deepspeed.runtime.pipe.engine:PipelineEngine._exec_forward_pass", "self.outputs = outputs"),),
    config=lambda job: job.pipeline is True and job.accumulates(),
    device="cpu",
)

_MICRO_BATCHES = 3


def reproduce(lab: Lab) -> str:
    from .._messages import Messages

    torch = lab.torch
    warnings = Messages(logging.WARNING)
    logging.getLogger("dsfix").addHandler(warnings)
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
    engine.micro_batches = 1
    found = torch.cat([engine.eval_batch(iter([each]), return_logits=True)[1] for each in batches])
    assert torch.allclose(found, torch.cat(right)), "one micro-batch at a time, the logits are not those of PyTorch"
    assert not any("return_logits" in line for line in warnings.lines), "a warning where all is well"
    engine.micro_batches = _MICRO_BATCHES
    _, logits = engine.eval_batch(iter(batches), return_logits=True)
    assert logits.shape == right[-1].shape, f"logits of {len(logits)} samples"
    assert torch.allclose(logits, right[-1]), "not the last micro-batch's logits"
    if not any("return_logits" in line for line in warnings.lines):
        raise BugPresent(
            f"of {_MICRO_BATCHES} micro-batches, eval_batch returns the logits of the last, and says nothing"
        )
    return "a warning says that the logits are those of the last micro-batch; with one at a time there is none"
