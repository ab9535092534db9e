"""PipelineModule(activation_checkpoint_interval=…): the first checkpointed layers of the pipeline are not trained.

Why: DeepSpeed's reentrant checkpointing, the default, passes gradients to layers only if one of their inputs requires
    them. For the batch, the engine sees to that only if the config has `pipeline.activation_checkpoint_interval`. Where
    the interval comes only from the module, the checkpointed layers at the beginning get no gradient, and keep their
    initial weights apart from weight decay, if a layer with weights that is not checkpointed follows in the first stage
    (`checkpointable_layers`). If none does, the first backward pass raises RuntimeError: element 0 of tensors does not
    require grad.
How: the batch requires gradients also if DeepSpeed's reentrant function would leave the first layers with weights
    that are to be trained without gradients. Where a layer before them is not checkpointed and trained, nothing
    changes, nor with another function, such as one of the script's own.
Changes: jobs as above: the first layers are trained. A checkpoint written without the patch loads: those layers
    continue from their initial weights, while the others have been trained on top of these.
Workaround: Scripts set `pipeline.activation_checkpoint_interval` in the config as well, or give the module an
    `activation_checkpoint_func` that does not reenter. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_LOAD = "deepspeed.runtime.pipe.engine:PipelineEngine._exec_load_micro_batch"


def batch_needs_gradients(engine: Any) -> bool:
    """Whether the batch has to require gradients, so that checkpointed layers get theirs."""
    from deepspeed.runtime.activation_checkpointing import (
        checkpointing,
    )

    config, module = engine._config.pipeline, engine.module
    if config["activation_checkpoint_interval"] > 0 and config["use_reentrant"]:
        return True
    if module.activation_checkpoint_func is not checkpointing.checkpoint:
        return False
    return module.activation_checkpoint_interval > 0 and _first_trained_are_checkpointed(module)


def _first_trained_are_checkpointed(module: Any) -> bool:
    """Whether the stage's first layers with weights to train are checkpointed: later ones get gradients from them."""
    layers, interval = module.forward_funcs, module.activation_checkpoint_interval
    for start in range(0, len(layers), interval):
        segment = layers[start : start + interval]
        if any(map(_is_trained, segment)):
            return bool(module._is_checkpointable(segment))
    return False


def _is_trained(layer: Any) -> bool:
    """layer: a module, or a function, in which a tied module may be bound."""
    import torch

    bound = (layer, *getattr(layer, "args", ()))
    return any(p.requires_grad for each in bound if isinstance(each, torch.nn.Module) for p in each.parameters())


def _needs_gradients(tensor: str) -> Edit:
    then = f"    {tensor}.requires_grad = {tensor}.is_floating_point()"
    return Edit(
        _LOAD,
        replace="if self._config.pipeline['activation_checkpoint_interval'] > 0 and "
        f"self._config.pipeline['use_reentrant']:\n{then}",
        code=f"if batch_needs_gradients(self):\n{then}",
        uses=(batch_needs_gradients,),
        effect=RAN,
        when=f"{tensor}.is_floating_point() and torch.is_grad_enabled()"
        " and self.module.activation_checkpoint_interval > 0 and not ("
        "self._config.pipeline['activation_checkpoint_interval'] > 0 and self._config.pipeline['use_reentrant'])",
    )


PATCH = Patch(
    title="PipelineModule with its own activation_checkpoint_interval: the first layers are not trained",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.4"},
    changes=(*map(_needs_gradients, ("loaded", "mine")),),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4224": "introduced in 0.10.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8178": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
    fixed=(Source(_LOAD, "self._reentrant_activation_checkpointing()"),),
    ranks=2,
)

_LEARNING_RATE = 0.05


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from . import _pipeline as pipeline

    class Plain(torch.nn.Sequential):  # type: ignore[name-defined,misc,unused-ignore]
        """Is not checkpointed if only Sequential is."""

    def train(checkpointed: list[str] | None) -> str:
        layers = pipeline.layers()
        layers[1] = Plain(*layers[1])  # type: ignore[misc,unused-ignore]
        module = lab.deepspeed.pipe.PipelineModule(
            layers=layers,
            num_stages=2,
            loss_fn=torch.nn.functional.mse_loss,
            partition_method="uniform",
            activation_checkpoint_interval=1,
            checkpointable_layers=checkpointed,
        )
        config = {
            "train_micro_batch_size_per_gpu": len(pipeline.batches()[0][1]),
            "gradient_accumulation_steps": pipeline.MICRO_BATCHES,
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        }
        engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
        source = iter(pipeline.batches())
        for _ in range(pipeline.STEPS):
            engine.train_batch(data_iter=source)
        seen = lab.parameters(engine)
        right, wrong = (
            pipeline.of_stage(pipeline.expected([first, *[_LEARNING_RATE] * 3]), seen)
            for first in (_LEARNING_RATE, 0.0)
        )
        told: str = lab.reference.compare(
            seen,
            right,
            {"those of an untrained first layer": wrong},
            after=f"{'some' if checkpointed else 'all'} layers checkpointed: after {pipeline.STEPS} steps",
        )
        return told

    return "; ".join(train(checkpointed) for checkpointed in (["Sequential"], None))
