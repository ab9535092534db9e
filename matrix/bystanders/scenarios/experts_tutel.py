"""DeepSpeed's MoE layer with Tutel, for which plain PyTorch stands in: its kernels are compiled for the device."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import experts

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_TOP_1: Any = {**experts._FITS, "precision": ("fp32",)}


class _Dispatcher:
    """Tutel's, as far as DeepSpeed's layer uses it."""

    def __init__(self, num_global_experts: int, capacity: int, model_dim: int, dispatch_dtype: Any) -> None:
        self.experts = num_global_experts

    def update(self, indices: Any, locations: Any, gates: Any, capacity: int) -> None:
        self.gates, self.capacity = gates, int(capacity)
        self.places = [expert * self.capacity + place for expert, place in zip(indices, locations)]

    def encode(self, tokens: Any) -> Any:
        buffer = tokens.new_zeros(self.experts * self.capacity, tokens.shape[1])
        for places in self.places:
            buffer = buffer.index_copy(0, places.long(), tokens)
        return buffer

    def decode(self, buffer: Any) -> Any:
        return sum(gate[:, None] * buffer[places.long()] for gate, places in zip(self.gates, self.places))


def _with_tutel(job: Job, run: Any) -> None:
    if job.plain:
        run()
        return
    stand_in = SimpleNamespace(
        fast_dispatcher=_Dispatcher, fast_cumsum_sub_one=lambda mask: job.torch.cumsum(mask, dim=0) - 1
    )
    layer = importlib.import_module("deepspeed.moe.sharded_moe")
    with mock.patch.multiple(layer, create=True, TUTEL_INSTALLED=True, tutel_moe=stand_in):
        run()


@scenario("Tutel dispatches tokens to experts, with capacity for all", pinned=[{"stage": "1"}], **_TOP_1)
def experts_of_tutel(job: Job) -> None:
    _with_tutel(job, lambda: experts._trained(job, experts._model(job, 1, experts._EXPERTS, use_tutel=True)))


@scenario(
    "Tutel dispatches tokens to experts of two tensor-parallel ranks, with capacity for all",
    pinned=[{"stage": "0"}],
    **{**_TOP_1, "stage": "0", "ranks": ("2",), "accumulation": ("1",), "optimizer": ("SGD",), "clipping": ("off",)},
)
def experts_of_tutel_tensor_parallel(job: Job) -> None:
    _with_tutel(job, lambda: _output(job))


def _output(job: Job) -> None:
    """The layer's output of the same batches on both ranks."""
    from dsfix.lab.models import regression_batch

    model = experts._model(job, 1, experts._EXPERTS, use_tutel=True)
    if job.plain:
        found: Any = model.to(job.device)
    else:
        split = importlib.import_module("deepspeed.moe.utils").split_params_into_different_moe_groups_for_optimizer
        parameters = list(split({"params": list(model.parameters()), "name": "all"}))
        config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
        mpu = _tensor_parallel(job)
        found = job._lab.initialize(model, config, model_parameters=parameters, mpu=mpu)
        comm = importlib.import_module("deepspeed.comm")
        gather = comm.all_gather_into_tensor  # into a flat tensor, and gloo wants what it gives to be flat
        comm.all_gather_into_tensor = lambda output, mine, **options: gather(output, mine.flatten(), **options)  # type: ignore[attr-defined,unused-ignore]
    for number in range(2):
        inputs, _ = regression_batch(0, number)
        with job.torch.no_grad():
            job.note(f"output {number}", found(inputs.to(job.device)))


def _tensor_parallel(job: Job) -> Any:
    """The mpu of a job whose two ranks are tensor-parallel."""
    distributed = job.torch.distributed
    both = distributed.new_group([0, 1])
    alone = [distributed.new_group([each]) for each in range(2)][job.rank]
    found: dict[str, Any] = {}
    for kind in ("model", "tensor_model"):
        found[f"get_{kind}_parallel_rank"] = lambda: job.rank
        found[f"get_{kind}_parallel_world_size"] = lambda: 2
        found[f"get_{kind}_parallel_group"] = lambda: both
    found["get_data_parallel_rank"] = lambda: 0
    found["get_data_parallel_world_size"] = lambda: 1
    found["get_data_parallel_group"] = lambda: alone
    return SimpleNamespace(**found)
