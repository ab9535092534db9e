"""What the reproductions of deepspeed.checkpointing share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STEPS, _LEARNING_RATE = 2, 0.1


def residual(checkpoint: Any, block: Any, x: Any) -> Any:
    """A block whose input is used again."""
    shape = x.shape
    changed = checkpoint(block, x)
    if x.shape != shape:
        raise BugPresent(f"the tensor given to a checkpoint has shape {list(x.shape)} afterwards")
    return x + changed


def train(
    lab: Lab, apply: Callable[[Any, Any, Any], Any], checkpoint: str, options: Mapping[str, bool], error: str = ""
) -> str:
    """Compares the parameters after steps with `options` of deepspeed.checkpointing with those without checkpoints.

    apply: (checkpoint, block, x) -> x. error: of the release with the bug, what its message contains.
    """
    torch = lab.torch
    checkpointing = lab.deepspeed.checkpointing

    class Model(lab.models.MLP):  # type: ignore[misc,name-defined]
        checkpoint: Any = staticmethod(lambda function, *inputs: function(*inputs))

        def forward(self, x: Any) -> Any:
            x = x.detach().requires_grad_()  # without it a reentrant checkpoint gives no gradients
            for block in self.blocks:
                x = apply(self.checkpoint, block, x)
            return self.head(x)

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = Model()
    right = lab.reference.train(model, [[batch] for batch in batches], model.loss, "SGD", lr=_LEARNING_RATE)

    model = Model()
    model.checkpoint = getattr(checkpointing, checkpoint)
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    checkpointing.configure(None, None, **options)
    try:
        for inputs, targets in batches:
            engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
            engine.step()
    except (AssertionError, TypeError, RuntimeError) as found:
        if error and error in str(found):
            raise BugPresent(str(found)) from found
        raise
    finally:
        checkpointing.configure(None, None)
    after = f"after {_STEPS} steps of {checkpoint} with {', '.join(options)}"
    return lab.reference.compare(lab.parameters(engine), right.parameters, after=after)
