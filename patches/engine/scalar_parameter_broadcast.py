"""deepspeed.initialize fails to broadcast a scalar, transposed or channels_last parameter.

Why: 0.19.8 broadcasts parameters as bytes, `p.data.view(torch.uint8)`. torch has no such view of a tensor without
    dimensions (CLIP's `logit_scale`), nor of one whose last dimension is not contiguous (`model.to(memory_format=
    torch.channels_last)`, `nn.Parameter(w.t())`): "self.dim() cannot be 0", or "self.stride(-1) must be 1, to view
    Float as Byte". All stages fail, on one rank, too; with ZeRO-3 also zero.Init, `apply` within it, and
    GatheredParameters with a `modifier_rank`.
How: such a parameter is broadcast as the bytes of its elements in order; if they are not in this order in memory, a
    copy is broadcast and copied back. Others are broadcast as before.
Workaround: Scripts give the parameter one dimension, or call `contiguous()`. You can keep it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BROADCAST_MODEL = "deepspeed.runtime.engine:DeepSpeedEngine._broadcast_model"
_PARTITIONED = "deepspeed.runtime.zero.partition_parameters"
_INIT = f"{_PARTITIONED}:Init._zero_init_param"
_APPLY = (
    f"{_PARTITIONED}:InsertPostInitMethodToModuleSubClasses.patch_init_and_builtins.<locals>"
    ".apply_with_gather.<locals>.get_wrapped_fn_to_apply.<locals>.wrapped_fn_to_apply"
)

# each call as a statement: its function, the tensor, the other arguments
_BROADCASTS = (
    (
        _BROADCAST_MODEL,
        "p.data",
        "groups._get_expert_broadcast_src_rank(p.group_name), group=self.expert_data_parallel_group[p.group_name]",
    ),
    (_BROADCAST_MODEL, "p.data", "groups._get_broadcast_src_rank(), group=self.seq_data_parallel_group"),
    (_INIT, "param.data", "0, partition_group"),
    (_INIT, "param.data", "dist.get_global_rank(partition_group, 0), partition_group"),
    (_APPLY, "param.data", "0, group=param.ds_process_group"),
)
_MODIFIED = "self.src_rank_by_group[id(p.ds_process_group)], group=p.ds_process_group, async_op=True"


def broadcast(tensor: Any, *arguments: Any, **options: Any) -> Any:
    """`dist.broadcast` of the tensor's bytes."""
    import torch
    from deepspeed import comm as dist

    if tensor.element_size() == 1 or (tensor.dim() and tensor.stride(-1) == 1):
        return dist.broadcast(tensor.view(torch.uint8), *arguments, **options)
    took_effect(__name__, "a scalar or strided parameter was broadcast (unpatched: RuntimeError)")
    elements = tensor.contiguous()
    handle = dist.broadcast(elements.view(-1).view(torch.uint8), *arguments, **options)
    if handle is not None:
        handle.wait()
    if not tensor.is_contiguous():
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0:  # expanded, so that its elements are one
                tensor, elements = (each.narrow(dimension, 0, 1) for each in (tensor, elements))
        tensor.copy_(elements)
    return handle


PATCH = Patch(
    title="Scalar, transposed or channels_last parameter: self.dim() cannot be 0 to view Float as Byte",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.19.8"},
    changes=(
        *(
            Edit(
                target,
                replace=f"dist.broadcast({tensor}.view(torch.uint8), {others})",
                code=f"broadcast({tensor}, {others})",
                uses=(broadcast,),
            )
            for target, tensor, others in _BROADCASTS
        ),
        Edit(
            f"{_PARTITIONED}:GatheredParameters._exit",
            replace=f"handles = [dist.broadcast(p.data.view(torch.uint8), {_MODIFIED}) for p in self.params]",
            code=f"handles = [broadcast(p.data, {_MODIFIED}) for p in self.params]",
            uses=(broadcast,),
        ),
    ),
    symptom=r"self\.(?:dim\(\) cannot be 0|stride\(-1\) must be 1) to view \w+ as Byte",
    ranks=2,
)

_LEARNING_RATE = 0.1
_STEPS = 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    try:
        return "; ".join(
            _train(lab, stage, within) for stage, within in ((0, False), (2, False), (3, False), (3, True))
        )
    except RuntimeError as error:
        if re.search(PATCH.symptom, str(error)):
            raise BugPresent(str(error).splitlines()[0]) from error
        raise


def _train(lab: Lab, stage: int, within: bool) -> str:
    """within: made in zero.Init, which broadcasts what `apply` has set."""
    torch = lab.torch

    class Scale(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(1.0))
            self.apply(lambda module: module.scale.data.fill_(module.scale.dim() + 2.0))

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.scale = Scale()
            weights = torch.arange(1.0, 13.0).view(3, 4) / 12 * (rank + 1)  # rank 0 has those that are trained
            self.transposed = torch.nn.Parameter(weights.t())
            convolution = weights.view(4, 3, 1, 1).repeat(1, 1, 2, 2).to(memory_format=torch.channels_last)
            self.convolution = torch.nn.Parameter(convolution)

        def forward(self, x: Any) -> Any:
            hidden = x @ self.transposed * self.scale.scale
            pixels = hidden[:, :, None, None].expand(-1, -1, 2, 2)
            return torch.nn.functional.conv2d(pixels, self.convolution).square().mean()

    batches = [[(torch.full((2, 4), (step + rank + 1) / 8),) for rank in (0, 1)] for step in range(_STEPS)]
    model = Model(0)
    right = lab.reference.train(model, batches, model, "SGD", lr=_LEARNING_RATE).parameters
    config = {
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage},
    }
    zero = lab.deepspeed.zero
    with zero.Init(config_dict_or_path=config, enabled=within):
        model = Model(lab.rank)
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    if stage == 3:
        with zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
            pass
    for batch in batches:
        engine.backward(engine(batch[lab.rank][0].to(lab.device)))
        engine.step()
    where = f"with ZeRO-{stage}{' and zero.Init' if within else ''}"
    return lab.reference.compare(lab.parameters(engine), right, after=f"{where}, after {_STEPS} steps")
