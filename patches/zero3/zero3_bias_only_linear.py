"""zero.Init: UnboundLocalError 'dim' in the backward pass of a linear layer with a frozen weight and a trained bias.

Why: under zero.Init, and with it from_pretrained with ZeRO-3, linear layers run in an autograd function of DeepSpeed
    that saves memory. Its backward pass sets `dim` where the weight's gradient is computed and uses it for the bias's:
    with the weight frozen and the bias trained, as in BitFit and in LoRA with bias="all" or "lora_only", it fails.
How: `dim` is set for both.
Workaround: Scripts set `memory_efficient_linear` to false, which keeps torch's own linear function. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.runtime.zero.linear:LinearFunctionForZeroStage3.backward"
_DIM = "dim = grad_output.dim()"

PATCH = Patch(
    title="zero.Init + linear layer with a frozen weight and a trained bias: UnboundLocalError 'dim'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0,<0.17.4"},
    changes=(
        Edit(
            _BACKWARD,
            before="if bias is not None and ctx.needs_input_grad[2]:\n    ...",
            code=_DIM,
            effect="the gradient of a bias next to a frozen weight was computed (unpatched: UnboundLocalError)",
            when="bias is not None and ctx.needs_input_grad[2] and not ctx.needs_input_grad[1]",
        ),
    ),
    symptom=r"zero/linear\.py.*, in backward\n(.*\n){1,4}?.*UnboundLocalError: .*'dim'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7435": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7449": "fixed in 0.17.4",
    },
    fixed_in="0.17.4",
    fixed=(Source(_BACKWARD, f"{_DIM}\nif ctx.needs_input_grad[0]:\n    ..."),),
)


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    steps = [[lab.models.regression_batch(rank=0, step=step)] for step in range(3)]

    def make() -> Any:
        model = lab.models.MLP()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        return model

    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3},
    }
    linear = torch.nn.functional.linear
    assert lab.deepspeed
    with lab.deepspeed.zero.Init(config_dict_or_path={**config, "train_batch_size": 4}):
        model = make()
    try:
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        initial = lab.parameters(engine)  # zero.Init draws them on the GPU
        for [(inputs, targets)] in steps:
            outputs = engine(inputs.to(lab.device))
            try:
                engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            except UnboundLocalError as error:
                if "'dim'" in str(error):
                    raise BugPresent(f"in the backward pass: {error}") from error
                raise
            engine.step()
    finally:
        torch.nn.functional.linear = linear  # zero.Init leaves its own
    plain = make()
    plain.load_state_dict(initial)
    right = lab.reference.train(plain, steps, plain.loss, "SGD", lr=0.1).parameters
    return lab.reference.compare(lab.parameters(engine), right, after=f"after {len(steps)} steps")
