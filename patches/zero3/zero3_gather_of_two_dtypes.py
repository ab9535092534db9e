"""ZeRO-3: parameters of two dtypes cannot be gathered together.

Why: adapters in fp32 on a model in bf16 are peft's default. `GatheredParameters`, and each step for the small
    parameters that stay gathered, give every parameter a buffer of the first one's dtype: "output tensor must have the
    same type as input tensor". With torch_autocast, where both are sent in one dtype, the forward pass fails: "all
    params must have the same dtype". Through 0.17.4 forward passes fail without torch_autocast, too; these are not
    covered.
How: each buffer has its own parameter's dtype; parameters that are sent in one dtype may have several.
Workaround: Scripts cast the adapters to the model's dtype (`autocast_adapter_dtype=False`). That can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_INIT = "deepspeed.runtime.zero.partition_parameters:Init"
_GATHER = f"{_INIT}._allgather_params_coalesced"
_ASSERTION = "all params must have the same dtype"

PATCH = Patch(
    title="ZeRO-3: parameters of two dtypes cannot be gathered together (LoRA in fp32 on a model in bf16)",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.5,<0.19.3"},
    changes=(
        Edit(
            _GATHER,
            replace="param_list[0].ds_tensor.dtype",
            code="param_list[len(allgather_params)].ds_tensor.dtype",
            effect="parameters of several dtypes were gathered; an error would have come",
            when="len({param.ds_tensor.dtype for param in param_list}) > 1",
        ),
        Edit(
            f"{_INIT}._convert_to_deepspeed_param",  # the assertion is in a function of this one
            replace=f'assert all(p.dtype == dtype for p in params), "{_ASSERTION}"',
            code="pass",
            effect="parameters of several dtypes were gathered; an error would have come",
            when="any(p.dtype != dtype for p in params)",
        ),
    ),
    symptom=rf"in _allgather_params_coalesced[\s\S]*(?:must have the same type|invalid tensor type)|{_ASSERTION}",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8060": "fixed in 0.19.3: gathered by GatheredParameters",
        "https://github.com/deepspeedai/DeepSpeed/pull/8113": "fixed in 0.19.3: with torch_autocast",
    },
    fixed_in="0.19.3",
    fixed=(Source(_GATHER, "param.ds_tensor.dtype"),),
    ranks=2,
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    return "; ".join(_train(lab, autocast) for autocast in (False, True))


def _train(lab: Lab, autocast: bool) -> str:
    torch = lab.torch
    steps = [[lab.models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    width = steps[0][0][0].shape[1]
    like = torch.zeros(0, device=lab.device)

    class Adapted(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.base = torch.nn.Linear(width, width).to(torch.bfloat16).requires_grad_(False)
            self.adapter = torch.nn.Parameter(torch.full((width, width), 0.1))

        def forward(self, inputs: Any) -> Any:
            with torch.autocast(inputs.device.type, enabled=False):
                return self.base(inputs.bfloat16()).float() + inputs.float() @ self.adapter

    def loss(model: Any, inputs: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(model(inputs).mean(1, keepdim=True), targets)

    torch.manual_seed(0)
    reference = Adapted()
    state = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    expected = lab.reference.train(
        reference, steps, lambda *batch: loss(reference, *batch), "SGD", lr=_LEARNING_RATE
    ).parameters
    model = Adapted()
    model.load_state_dict(state)
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3},
        **({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}} if autocast else {}),
    }
    how = f"{'with' if autocast else 'without'} torch_autocast"
    try:
        engine = lab.initialize(model, config, model_parameters=[model.adapter])
        for batches in steps:
            engine.backward(loss(engine, *(tensor.to(like) for tensor in batches[lab.rank])))
            engine.step()
    except (AssertionError, RuntimeError, TypeError) as error:
        for text in (_ASSERTION, "must have the same type", "invalid tensor type"):
            if text in str(error):
                raise BugPresent(f"{how}: {type(error).__name__}: {str(error).splitlines()[0]}") from error
        raise
    got = {"adapter": lab.parameters(engine)["adapter"]}
    difference = lab.reference.largest_difference(got, {"adapter": expected["adapter"]})
    assert difference.relative < 5e-3, f"{how}: {difference}"
    return f"{how} the adapter matches plain PyTorch within {difference.relative:.1e}"
