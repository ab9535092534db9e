"""MiCS (`mics_shard_size`): parameters are used before they are gathered; through 0.13.1 the first forward pass fails.

Why: MiCS starts the all-gathers of several parameters at once, in PyTorch's coalescing manager, and waits for the
    handle of the last one. Since PyTorch 2.1 only the manager has a handle that can be waited for; those of the single
    all-gathers raise an error instead. Through 0.13.1 it ends the job (in 0.13.0 and 0.13.1 only with newer PyTorch,
    where it is a ValueError; in 0.12.3 MiCS cannot train, so only evaluations are affected). Since 0.13.2 it is caught:
    each gathering logs a line, and nothing is waited for. The model computes with whatever the memory held before:
    garbage or nan, in some runs or layers.
How: the manager's handle is waited for, on its stream.
Changes: the steps in which a parameter was used too early; all others give the same numbers. A checkpoint written
    without the patch loads, but its weights were trained on such gradients.
Workaround: None in the script; ZeRO-3 without MiCS helps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MANAGER = "torch.distributed.distributed_c10d._coalescing_manager(group, device=device, async_ops=async_op)"


@contextmanager
def kept(manager: Any, handles: list[Any]) -> Iterator[None]:
    """The coalescing manager, whose own handle, if it has one, becomes the last one."""
    with manager as own:
        yield
    if own is not None:
        ran(__name__)
        handles.append(own)


PATCH = Patch(
    title="MiCS: nan or garbage weights; through 0.13.1: Illegal to call wait on IllegalWork object",
    severity=Severity.WRONG_RESULT,
    # 0.19.7 has no MiCS
    affects={"deepspeed": ">=0.12.0,<0.19.7", "torch": ">=2.1"},
    changes=(
        Edit(
            "deepspeed.comm.torch:get_coalescing_manager",
            replace=f"return {_MANAGER}",
            code=f"return kept({_MANAGER}, reqs)",
            uses=(kept,),
        ),
    ),
    symptom="Illegal to call wait on IllegalWork object",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5080": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/4792": "the error is caught, and nothing waited for, in 0.13.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/5039": "the same for newer PyTorch, in 0.13.2",
    },
    fixed_in="0.19.7",
    present=(
        Source(
            "deepspeed.runtime.zero.mics:MiCS_Init._flat_all_gather_with_coalescing_manager",
            "all_gather_handle = dist.all_gather_coalesced(output_tensors, input_tensors,"
            " group=mics_comm_groups.param_shard_group, async_op=True)",
        ),
    ),
    fixed=(
        Source(
            "deepspeed.runtime.engine:DeepSpeedEngine.is_first_weights_partition_group",
            "return self.zero_optimization_partition_weights()",
        ),
    ),
    config=lambda job: job.stage == 3 and job.number("zero_optimization", "mics_shard_size") > 0,
    ranks=2,
)

_LEARNING_RATE, _BEFORE = 0.1, 7.0


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    lab.require_ranks(2)
    if not lab.emulated:
        raise CannotTell("whether it is used too early depends on timing, which only the emulated device controls")
    lab.late_streams()
    torch = lab.torch
    release = Version(lab.deepspeed.__version__)
    if release >= Version("0.19.7"):
        raise CannotTell("since 0.19.7 there is no MiCS")
    # in 0.12.3 MiCS cannot train: 'float' object has no attribute 'get_model_parallel_world_size'
    trains = release != Version("0.12.3")
    batch = [lab.models.regression_batch(rank, step=0) for rank in (0, 1)]
    model = lab.models.MLP()
    loss = model.loss(*batch[lab.rank]).item()
    right = lab.reference.train(model, [batch], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    model = lab.models.MLP()
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, _BEFORE)
    early = model.loss(*batch[lab.rank]).item()

    model = lab.models.MLP()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": len(batch[0][0]),
        "zero_optimization": {"stage": 3, "mics_shard_size": 2, "stage3_param_persistence_threshold": 0},
    }
    if trains:
        config["optimizer"] = {"type": "SGD", "params": {"lr": _LEARNING_RATE}}
        engine = lab.initialize(model, config, model_parameters=model.parameters())
    else:
        lab.deepspeed.zero.MiCS_Init(module=model, config_dict_or_path=config)
        engine = lab.initialize(model, config)
    collectives = torch.distributed.distributed_c10d
    manager = collectives._coalescing_manager
    # gloo has none of its own
    collectives._coalescing_manager = lambda group, device, async_ops: manager(group, async_ops=async_ops)
    empty = torch.empty

    def filled(*args: Any, **options: Any) -> Any:
        tensor = empty(*args, **options)
        if tensor.device.type == "cuda":
            tensor.fill_(_BEFORE)
            torch.cuda.synchronize()
        return tensor

    inputs, targets = (each.to(lab.device) for each in batch[lab.rank])
    torch.empty = filled
    try:
        found = torch.nn.functional.mse_loss(engine(inputs), targets)
        seen = found.item()
    except (ValueError, RuntimeError) as error:
        if "IllegalWork" not in str(error):
            raise
        raise BugPresent(str(error)) from error
    finally:
        torch.empty = empty
    if abs(seen - early) < 1e-3 * early:
        raise BugPresent(f"the loss is {seen:.4f}, that of what the memory held before, instead of {loss:.4f}")
    assert abs(seen - loss) < 1e-4, f"the loss is {seen}, expected {loss}"
    if not trains:
        return f"the loss is {seen:.4f}, as without DeepSpeed"
    engine.backward(found)
    engine.step()
    result: str = lab.reference.compare(lab.parameters(engine), right, after="after one step")
    return result
