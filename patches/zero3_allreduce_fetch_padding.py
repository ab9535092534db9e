"""ZeRO-3 with `stage3_use_all_reduce_for_fetch_params`: parameters are gathered with wrong first elements.

Why: a parameter whose size is no multiple of the number of ranks is padded, and one buffer holds all that are gathered
    together. From 0.14.3 to 0.19.3 the buffer has room for the padding, but each parameter begins where the one before
    ends without it. What the padding holds, which nobody has set, is so added to the first elements of the next
    parameter. Fresh memory is mostly zero, memory that was used before is not: the results are wrong now and then.
How: each parameter begins behind the padding of the one before.
Changes: only with `stage3_use_all_reduce_for_fetch_params` and padded parameters: losses and gradients are those of the
    parameters as they are. A checkpoint written without the patch holds parameters that were never disturbed
    themselves, but trained by gradients, and with an optimizer's moments, of disturbed ones.
Upstream: brought by https://github.com/deepspeedai/DeepSpeed/pull/5420 (0.14.3), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/8158 (0.19.4).
Retire: when DeepSpeed 0.19.3 is no longer supported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

# the nested function that gathers is named all_gather_coalesced on some releases and _all_gather_coalesced on others
_CONVERT = "deepspeed.runtime.zero.partition_parameters:Init._convert_to_deepspeed_param"

PATCH = Patch(
    title="ZeRO-3 with stage3_use_all_reduce_for_fetch_params: padding is added to the next parameter",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.3,<0.19.4"},
    changes=(
        Edit(
            _CONVERT,
            replace="start_param += param.ds_numel",
            code="start_param += param.ds_numel_aligned",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/pull/5420",
        "https://github.com/deepspeedai/DeepSpeed/pull/8158",
    ),
    fixed_in="0.19.4",
    fixed=(Source(_CONVERT, "start_param += param.ds_numel_aligned"),),
    ranks=2,
)

_LEARNING_RATE = 0.1
_STEPS = 2
_WIDTH = 5  # odd, as is the size of every parameter then
_PADDING = 100.0


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    deepspeed = lab.deepspeed
    from deepspeed.runtime.zero.config import (  # type: ignore[import-not-found,unused-ignore]
        DeepSpeedZeroConfig,
    )

    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    if not hasattr(DeepSpeedZeroConfig(), "use_all_reduce_for_fetch_params"):
        raise CannotTell(f"{deepspeed.__version__} has no stage3_use_all_reduce_for_fetch_params")
    batches = [[regression_batch(rank, step, width=_WIDTH) for rank in range(2)] for step in range(_STEPS)]
    model = MLP(_WIDTH)
    expected = train(model, batches, model.loss, "SGD", lr=_LEARNING_RATE)
    disturbed = MLP(_WIDTH)
    for name, parameter in disturbed.named_parameters():
        if name.endswith("bias"):  # gathered together with its module's weight, and after that
            parameter.data.view(-1)[0] += _PADDING
    wrong, right = (model.loss(*batches[0][lab.rank]).item() for model in (disturbed, MLP(_WIDTH)))

    model = MLP(_WIDTH)
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {
            "stage": 3,
            "stage3_use_all_reduce_for_fetch_params": True,
            "stage3_param_persistence_threshold": 0,
        },
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for step, ranks in enumerate(batches):
        inputs, targets = (tensor.to(lab.device) for tensor in ranks[lab.rank])
        for parameter in engine.module.parameters():
            part = parameter.ds_tensor
            own = parameter.ds_numel - lab.rank * part.ds_numel
            part.data[max(0, own) :] = _PADDING  # as memory that was used before
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        if step == 0 and abs(loss.item() - wrong) < 1e-4 * wrong < abs(right - wrong):
            raise BugPresent(f"with {_PADDING:g} in the padding the first loss is {loss.item():.4g}, not {right:.4g}")
        engine.backward(loss)
        engine.step()
    difference = largest_difference(lab.parameters(engine), expected.parameters)
    assert difference.relative < 1e-4, f"after {_STEPS} steps {difference}"
    done = f"after {_STEPS} steps with {_PADDING:g} in the padding"
    return f"{done} the parameters are plain PyTorch's within {difference.relative:.1e}"
