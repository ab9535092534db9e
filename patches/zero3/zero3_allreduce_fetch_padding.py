"""ZeRO-3 with `stage3_use_all_reduce_for_fetch_params`: parameters are gathered with wrong first elements.

Why: a parameter whose size is not a multiple of the number of ranks is padded, and one buffer holds all parameters that
    are gathered together. From 0.14.3 to 0.19.3 the buffer has room for the padding, but each parameter begins where
    the previous one ends without its padding. The uninitialized content of the padding is thus added to the first
    elements of the next parameter. Fresh memory is mostly zero, reused memory is not: the results are wrong
    intermittently.
How: each parameter begins after the padding of the previous one.
Changes: only with `stage3_use_all_reduce_for_fetch_params` and padded parameters: losses and gradients belong to the
    actual parameters. In a checkpoint written without the patch the parameters themselves were never corrupted, but
    they, and the optimizer's moments, come from gradients of corrupted ones.
Workaround: Scripts pad their layers, so that the elements of each parameter are a multiple of the number of ranks.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

# the nested function that gathers is all_gather_coalesced in some releases and _all_gather_coalesced in others
_CONVERT = "deepspeed.runtime.zero.partition_parameters:Init._convert_to_deepspeed_param"


def _meets(job: Job) -> bool:
    names = ("stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params")
    return job.stage == 3 and any(job.get("zero_optimization", name) is True for name in names)


PATCH = Patch(
    title="ZeRO-3 with stage3_use_all_reduce_for_fetch_params: padding is added to the next parameter",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.3,<0.19.4"},
    changes=(
        Edit(
            _CONVERT,
            replace="start_param += param.ds_numel",
            code="start_param += param.ds_numel_aligned",
            effect=RAN,  # the padding may contain zeros
            when="param.ds_numel_aligned != param.ds_numel",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5420": "introduced in 0.14.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8158": "fixed in 0.19.4",
    },
    fixed_in="0.19.4",
    fixed=(Source(_CONVERT, "start_param += param.ds_numel_aligned"),),
    ranks=2,
    config=_meets,
)

_LEARNING_RATE = 0.1
_STEPS = 2
_WIDTH = 5  # odd, so that every parameter's size is odd
_PADDING = 100.0


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    deepspeed = lab.deepspeed
    from deepspeed.runtime.zero.config import (
        DeepSpeedZeroConfig,
    )

    if not hasattr(DeepSpeedZeroConfig(), "use_all_reduce_for_fetch_params"):
        raise CannotTell(f"{deepspeed.__version__} has no stage3_use_all_reduce_for_fetch_params")
    batches = [[lab.models.regression_batch(rank, step, width=_WIDTH) for rank in range(2)] for step in range(_STEPS)]
    model = lab.models.MLP(_WIDTH)
    right = lab.reference.train(model, batches, model.loss, "SGD", lr=_LEARNING_RATE)
    corrupted = lab.models.MLP(_WIDTH)
    for name, parameter in corrupted.named_parameters():
        if name.endswith("bias"):  # gathered together with its module's weight, and after it
            parameter.data.view(-1)[0] += _PADDING
    model = lab.models.MLP(_WIDTH)
    wrong_loss, right_loss = (each.loss(*batches[0][lab.rank]).item() for each in (corrupted, model))

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
            part.data[max(0, own) :] = _PADDING  # as in reused memory
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        if step == 0 and abs(loss.item() - wrong_loss) < 1e-4 * wrong_loss < abs(right_loss - wrong_loss):
            raise BugPresent(
                f"with {_PADDING:g} in the padding the first loss is {loss.item():.4g}, expected {right_loss:.4g}"
            )
        engine.backward(loss)
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine), right.parameters, after=f"after {_STEPS} steps with {_PADDING:g} in the padding"
    )
