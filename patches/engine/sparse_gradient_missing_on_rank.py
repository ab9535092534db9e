"""Embedding(sparse=True) without ZeRO: a rank whose batch does not use the embedding hangs, or gets garbage.

Why: without `sparse_gradients`, which 0.19.8 no longer has, ranks exchange a gradient as they have it: a sparse one by
    all-gathers, a dense one by an all-reduce. A rank that has not used the embedding makes a dense gradient of zeros,
    and calls different collectives than the other ranks: the job hangs, fails, or adds up unrelated data.
How: for a model with parameters of `sparse=True` modules, one more small all-reduce before the gradients are exchanged
    finds out whether any rank has a sparse or a dense gradient for each. A missing gradient is sparse where others are
    sparse, and a sparse one dense where another is dense. Not on 0.12, which was not run.
Changes: jobs that trained on garbage without hanging have to be restarted.
Workaround: Scripts set `sparse_gradients`, look up a word without effect on the loss in each batch, or do without
    `sparse=True`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_GRADIENTS = "deepspeed.runtime.engine:DeepSpeedEngine._get_gradients_for_reduction"
_REDUCE = "deepspeed.runtime.engine:DeepSpeedEngine._reduce_non_expert_gradients"
_BUCKETS = "split_sparse_tensor_buckets, split_dense_tensor_buckets = split_half_float_double_sparse(grads)"
_NONE, _SPARSE, _DENSE = range(3)


def agree_on_layouts(engine: Any) -> None:
    """Give gradients that may be sparse the layout that they have on the other ranks."""
    if getattr(engine, "sparse_tensor_module_names", None):  # `sparse_gradients`: all are exchanged as sparse
        return
    parameters = _of_sparse_modules(engine.module)
    if not parameters:
        return
    import torch
    from deepspeed import comm  # type: ignore[import-not-found,unused-ignore]
    from deepspeed.utils import groups  # type: ignore[import-not-found,unused-ignore]

    ranks = (
        engine.mpu.get_data_parallel_group()
        if engine.pipeline_parallelism
        else groups._get_sequence_data_parallel_group()
    )
    if comm.get_world_size(group=ranks) == 1:
        return
    own = [_NONE if each.grad is None else _SPARSE if each.grad.is_sparse else _DENSE for each in parameters]
    of_all = torch.tensor(own, device=engine.device)
    comm.all_reduce(of_all, op=comm.ReduceOp.MAX, group=ranks)
    for parameter, mine, layout in zip(parameters, own, of_all.tolist()):
        if mine == _NONE and layout == _SPARSE:
            took_effect(__name__, "a gradient missing on this rank was sparse, as on other ranks (unpatched: dense)")
            nowhere = torch.empty((1, 0), dtype=torch.long, device=parameter.device)
            nothing = parameter.detach().new_empty((0, *parameter.shape[1:]))
            parameter.grad = torch.sparse_coo_tensor(nowhere, nothing, parameter.shape, check_invariants=False)
        elif mine == _SPARSE and layout == _DENSE:
            took_effect(__name__, "a sparse gradient was made dense, as on another rank")
            parameter.grad = parameter.grad.to_dense()


def _of_sparse_modules(module: Any) -> list[Any]:
    """In the same order on all ranks. Without experts, whose ranks are others."""
    found = {
        id(parameter): parameter
        for each in module.modules()
        if vars(each).get("sparse") is True
        for parameter in each.parameters(recurse=False)
        if parameter.requires_grad and parameter.numel() and parameter.dim() == 2 and getattr(parameter, "allreduce", 1)
    }
    return list(found.values())


PATCH = Patch(
    title="Embedding(sparse=True) without ZeRO hangs if a rank's batch does not use the embedding",
    severity=Severity.HANG,
    affects={"deepspeed": ">=0.13.0"},
    changes=(
        Edit(
            _GRADIENTS,
            before="non_expert_grads = []",
            code="agree_on_layouts(self)",
            uses=(agree_on_layouts,),
        ),
    ),
    symptom=r"in (sparse_all_gather|all_gather_scalar)\n[\s\S]*(Watchdog caught collective|Timed out waiting \d+ms)",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/291": "introduced"},
    present=(
        Source(_GRADIENTS, "param.grad = torch.zeros(param.size(), dtype=param.dtype, device=param.device)"),
        Source(_GRADIENTS, "grad_data = SparseTensor(param.grad)"),
        Source(_REDUCE, _BUCKETS),
    ),
    ranks=2,
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    _ = lab.torch  # before the helper imports it
    from ._sparse import train

    uses = (
        ("looked up", "looked up"),
        ("looked up", "not"),
        ("not", "looked up"),
        ("looked up", "densely"),
        ("densely", "not"),
        ("not", "not"),
    )
    return "; ".join(train(lab, each, {}) for each in uses)
