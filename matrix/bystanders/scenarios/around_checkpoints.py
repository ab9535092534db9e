"""Checkpoints that are converted, loaded or exported, and experts, in scripts that work around a bug."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

from matrix.bystanders import space
from matrix.bystanders.scenario import scenario
from matrix.bystanders.scenarios import (
    around_zero3,
    conversions,
    converted,
    experts_apart,
    exported,
    exported_otherwise,
    universal_by_mpu,
)

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

_WHOLE_FILES = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


def _one(**levels: str) -> dict[str, Any]:
    """Two ranks with these levels: one job."""
    setting = {**space.plain(), **levels}
    return {"pinned": [setting], **{name: (level,) for name, level in setting.items()}}


def _after_load(job: Job, then: Callable[[Any], None]) -> Any:
    """What the script does to an engine after each load of a checkpoint."""

    def wrap(load: Any) -> Any:
        def load_and_do(self: Any, *given: Any, **options: Any) -> Any:
            found = load(self, *given, **options)
            then(self)
            return found

        return load_and_do

    return around_zero3._replaced(job, "deepspeed.runtime.engine", "DeepSpeedEngine.load_checkpoint", wrap)


def _by_number(names: Any) -> list[str]:
    return sorted(names, key=lambda name: [int(each) for each in re.findall(r"\d+", os.path.basename(name))])


@scenario("the converter's lists of files are sorted by the numbers in their names",
    works_around=("universal_checkpoint_rank_order", "universal_checkpoint_fragment_order"), release="0.13.1",
    **_one(stage="1", optimizer="AdamW"))  # fmt: skip
def converted_by_number(job: Job) -> None:
    if job.plain:
        converted.converted_to_universal(job)
        return
    tool, files = (
        importlib.import_module(f"deepspeed.checkpoint.{each}") for each in ("ds_to_universal", "zero_checkpoint")
    )
    listed = files.get_zero_files
    with (
        mock.patch.object(tool, "sorted", _by_number, create=True),
        mock.patch.object(files, "get_zero_files", lambda folder: _by_number(listed(folder))),
    ):
        converted.converted_to_universal(job)


@scenario("a universal checkpoint, after whose load the frozen weights and buffers are loaded by hand",
    works_around=("universal_checkpoint_leaves_frozen",), **_one(stage="2", optimizer="AdamW"))  # fmt: skip
def frozen_loaded_by_hand(job: Job) -> None:
    def make(seed: int, config: Any) -> Any:
        model = job.MLP(seed=seed)
        model.blocks[0].requires_grad_(False)
        return job.engine(model, [each for each in model.parameters() if each.requires_grad], **config)

    def load(engine: Any) -> None:
        file = job.tmp / "checkpoint" / "two" / "mp_rank_00_model_states.pt"
        engine.module.load_state_dict(job.torch.load(file, weights_only=False)["module"])

    with _after_load(job, load):
        conversions._universal(job, make)


@scenario("after the load of a universal checkpoint each group gets its weight decay, each state its own count",
    works_around=("universal_checkpoint_param_groups", "universal_checkpoint_shared_step"),
    **_one(stage="3", optimizer="AdamW"))  # fmt: skip
def groups_restored_by_hand(job: Job) -> None:
    def make(seed: int, config: Any) -> Any:
        model = job.MLP(seed=seed)
        groups = [{"params": list(model.blocks.parameters())}, {"params": list(model.head.parameters())}]
        return job.engine(model, [{**each, "weight_decay": decay} for each, decay in zip(groups, (1.0, 0.0))], **config)

    def restore(engine: Any) -> None:
        optimizer = engine.optimizer.optimizer
        for group, decay in zip(optimizer.param_groups, (1.0, 0.0)):
            group["weight_decay"] = decay
        for state in optimizer.state.values():
            state["step"] = state["step"].clone()

    with _after_load(job, restore):
        conversions._universal(job, make)


@scenario("one sub-group under ZeRO-3, on machines of one device each, and a load with the rank for the local one",
    works_around=("universal_checkpoint_subgroups", "universal_checkpoint_load_subgroups",
        "universal_checkpoint_local_rank"), release="0.17.6",
    **_one(stage="3", optimizer="AdamW"))  # fmt: skip
def one_sub_group_on_two_machines(job: Job) -> None:
    def ranked(load: Any) -> Any:
        def load_by_rank(self: Any, *given: Any, **options: Any) -> Any:
            comm = importlib.import_module("deepspeed.comm")
            machine = mock.patch.dict(os.environ, LOCAL_RANK="0")
            with machine, mock.patch.object(comm, "get_local_rank", comm.get_rank):
                return load(self, *given, **options)

        return load_by_rank

    one: Any = {"zero_optimization": {"sub_group_size": 10**9}}
    with around_zero3._replaced(job, "deepspeed.runtime.engine", "DeepSpeedEngine.load_checkpoint", ranked):
        conversions._universal(job, lambda seed, config: job.engine(job.MLP(seed=seed), **{**one, **config}))


@scenario("a job with an mpu sets the optimizer's count of steps after the load of a universal checkpoint",
    works_around=("universal_checkpoint_step",), release="0.13.1",
    **_one(stage="1", optimizer="AdamW"))  # fmt: skip
def count_set_by_hand(job: Job) -> None:
    def count(engine: Any) -> None:
        optimizer = engine.optimizer.optimizer
        for each in (*optimizer.param_groups, *optimizer.state.values()):
            if "step" in each:
                each["step"] = each["step"] * 0 + 2

    with mock.patch.dict(os.environ, _WHOLE_FILES), _after_load(job, count):
        universal_by_mpu._resumed(job, job.world_size, job.world_size)


@scenario("the script links weights and states again after the load of a universal checkpoint",
    works_around=("universal_checkpoint_unlinks_fp32",),
    **_one(stage="1", optimizer="AdamW", precision="bf16"))  # fmt: skip
def linked_again(job: Job) -> None:
    def link(engine: Any) -> None:
        zero = engine.optimizer
        zero._link_all_hp_params()
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()

    with _after_load(job, link):
        conversions._universal(job, lambda seed, config: job.engine(job.MLP(seed=seed), **config))


@scenario("buckets with experts are reduced without a further division",
    works_around=("zero12_experts_bucket_divided_twice",), release="0.13.0", **_one(stage="1"))  # fmt: skip
def divided_once(job: Job) -> None:
    undivided = lambda scatter: lambda self, *given, **options: scatter(self, *given, **{**options, "divide": False})  # noqa: E731
    zero = "deepspeed.runtime.zero.stage_1_and_2"
    with around_zero3._replaced(job, zero, "DeepSpeedZeroOptimizer.allreduce_and_scatter", undivided):
        experts_apart._trained(job, 1)


@scenario("experts on two ranks, whose weights are read from the parameters",
    works_around=("zero12_experts_unlinked",), release="0.14.2", **_one(stage="2"))  # fmt: skip
def experts_read_from_parameters(job: Job) -> None:
    experts_apart._trained(job, 2)


@scenario("experts on two of four ranks, with multi-rank buckets",
    works_around=("zero12_experts_reduced_to_other_rank",), **_one(stage="2", ranks="4"))  # fmt: skip
def shared_experts_in_multi_rank_buckets(job: Job) -> None:
    experts_apart._trained(job, 2)


@scenario("frozen weights and buffers are put from the model's state into the exported weights",
    works_around=("zero1_to_fp32_leaves_out_frozen", "zero_to_fp32_integer_buffers"), **_one(stage="1"))  # fmt: skip
def rest_exported_by_hand(job: Job) -> None:
    model = job.MLP()
    model.blocks[0].requires_grad_(False)
    model.register_buffer("ids", job.torch.tensor([2**24 + 1, 5]))
    engine = job.engine(model, [each for each in model.parameters() if each.requires_grad])
    job.train(engine, 0)
    job.save(engine, "two")
    written: dict[str, Any] = {}
    if job.plain:
        written = {**job.parameters(engine), "ids": model.ids}
    else:
        job.torch.distributed.barrier()
        if job.rank == 0:
            written = exported._converted(job)
            saved = job.torch.load(job.tmp / "checkpoint" / "two" / "mp_rank_00_model_states.pt", weights_only=False)
            trained = {name for shapes in saved["param_shapes"] for name in shapes}
            written.update({name: each for name, each in saved["module"].items() if name not in trained})
    for name, weight in sorted(written.items()):
        job.note(f"written: {name}", str(weight.tolist()) if name == "ids" else weight)


@scenario("torch.load is told by the environment, or by the script, to unpickle",
    works_around=("zero_to_fp32_weights_only",), release="0.15.4", **_one(stage="2", ranks="1"))  # fmt: skip
def read_unpickled(job: Job) -> None:
    load = job.torch.load

    def whole(*args: Any, **options: Any) -> Any:
        return load(*args, weights_only=False, **options)

    for told in (mock.patch.dict(os.environ, _WHOLE_FILES), mock.patch.object(job.torch, "load", whole)):
        with told:
            exported_otherwise.exported_into_a_dict(job)
