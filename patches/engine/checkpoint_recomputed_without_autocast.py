"""deepspeed.checkpointing under torch.autocast: the recomputation in the backward pass runs in fp32, or fails.

Why: `checkpoint` and `non_reentrant_checkpoint` restore the random states of the forward pass when they recompute it,
    but not autocast, which is off in the backward pass, whether it is the model's or `torch_autocast` of the config.
    With inputs in fp32 `checkpoint` recomputes in fp32: other numbers than those of the forward pass, slowly, and with
    more memory. With inputs in half precision both fail: mat1 and mat2 must have the same dtype.
How: a function is recomputed under the autocast of its forward pass, as by `torch.utils.checkpoint`; where that of the
    backward pass is the same, nothing changes. `checkpoint` still recomputes fp16 in fp32 where inputs are in fp32:
    without a loss scale, gradients could vanish in fp16.
Changes: gradients of checkpointed functions under autocast: those without checkpoints. A checkpoint written without the
    patch can be resumed.
Workaround: Scripts enter autocast within the checkpointed function, too. You can keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CHECKPOINTING = "deepspeed.runtime.activation_checkpointing.checkpointing"
_FORWARD = f"{_CHECKPOINTING}:CheckpointFunction.forward"
_BACKWARD = f"{_CHECKPOINTING}:CheckpointFunction.backward"
_NON_REENTRANT = f"{_CHECKPOINTING}:non_reentrant_checkpoint"


def with_autocast(function: Callable[..., Any], fp16: bool = False) -> Callable[..., Any]:
    """The function, to be called under what is now the autocast of the accelerator and of the CPU.

    Without `fp16`, autocast to fp16 is left out unless an input is in half precision.
    """
    return partial(_call, function, _autocast(), fp16)


def _call(function: Callable[..., Any], autocast: dict[str, tuple[bool, Any]], fp16: bool, *inputs: Any) -> Any:
    import torch

    now = _autocast()
    fp16 = fp16 or any(torch.is_tensor(each) and each.dtype in (torch.float16, torch.bfloat16) for each in inputs)
    with ExitStack() as stack:
        for device, (enabled, dtype) in autocast.items():
            if not (enabled or now[device][0]) or (enabled, dtype) == now[device]:
                continue
            if fp16 or not enabled or dtype != torch.float16:
                took_effect(__name__, "a function was recomputed under the autocast of its forward pass")
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        return function(*inputs)


def _autocast() -> dict[str, tuple[bool, Any]]:
    """Device -> whether autocast is on, and its dtype."""
    import torch
    from deepspeed.accelerator import get_accelerator  # type: ignore[import-not-found,unused-ignore]

    def state(device: str) -> tuple[bool, Any]:
        if hasattr(torch, "get_autocast_dtype"):
            if not torch.amp.is_autocast_available(device):  # mps in torch 2.4
                return False, None
            return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        if device == "cpu":  # before torch 2.4
            return torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
        return torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()

    return {device: state(device) for device in (get_accelerator().device_name(), "cpu")}


PATCH = Patch(
    title="deepspeed.checkpointing under autocast: recomputed in fp32, or tensors of different dtypes",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _FORWARD,
            replace="ctx.run_function = run_function",
            code="ctx.run_function = with_autocast(run_function)",
            uses=(with_autocast,),
        ),
        Edit(
            _NON_REENTRANT,
            before="fwd_cpu_rng_state = torch.get_rng_state()",
            code="function = with_autocast(function, fp16=True)",
            uses=(with_autocast,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/217": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/4118": "related: non_reentrant_checkpoint, in 0.10.2",
    },
    present=(
        Source(_BACKWARD, "with torch.enable_grad():\n    outputs = ctx.run_function(*detached_inputs)"),
        Source(f"{_NON_REENTRANT}.<locals>.checkpoint_unpack", "_unused = function(*detached_inputs)"),
    ),
)

_LEARNING_RATE, _STEPS = 0.1, 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    checkpointing = lab.deepspeed.checkpointing
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    batches = [(inputs.to(lab.device), targets.to(lab.device)) for inputs, targets in batches]

    class Model(lab.models.MLP):  # type: ignore[misc,name-defined]
        checkpoint: Any = staticmethod(lambda function, *inputs: function(*inputs))

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []
            self.blocks[0][0].register_forward_hook(lambda module, inputs, output: self.seen.append(output.dtype))

        def forward(self, x: Any) -> Any:
            x = x.detach().requires_grad_()  # without it a reentrant checkpoint gives no gradients
            with torch.autocast(lab.device.type, torch.bfloat16):
                for block in self.blocks:
                    x = self.checkpoint(block, x)
                return self.head(x).float()

    def trained(name: str) -> str:
        model = Model().to(lab.device)
        right = lab.reference.train(model, [[batch] for batch in batches], model.loss, "SGD", lr=_LEARNING_RATE)
        model = Model()
        model.checkpoint = getattr(checkpointing, name)
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        try:
            for inputs, targets in batches:
                engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
                engine.step()
        except RuntimeError as error:
            if len({*model.seen}) == 1:
                raise
            raise BugPresent(f"{name}: {error}") from error
        if len({*model.seen}) > 1:
            raise BugPresent(f"{name}: the same layer computed in {model.seen[0]}, and recomputed in {model.seen[1]}")
        return lab.reference.compare(
            lab.parameters(engine), right.parameters, after=f"{name}: after {_STEPS} steps under autocast"
        )

    return "; ".join(trained(name) for name in ("checkpoint", "non_reentrant_checkpoint"))
