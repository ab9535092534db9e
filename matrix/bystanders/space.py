"""The space of jobs: scenarios and settings. A setting maps factors to levels; a job is a scenario with a setting.

Each scenario is run with every stage; levels of the other factors are assigned in turn where they are compatible.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matrix.bystanders import scenario
from matrix.bystanders.scenario import Scenario

_HALF: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}},
}


def _zero(**options: Any) -> dict[str, Any]:
    return {"zero_optimization": options}


def _optimizer(kind: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
# with a large epsilon the step depends on the gradient's size, and less on rounding of small gradients
ADAM = {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-2, "weight_decay": 0.01}

#: factor -> level -> what it adds to the config. The first level is the plain one.
FACTORS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "stage": {each: _zero(stage=int(each)) if each != "0" else {} for each in "0123"},
    "offload": {
        "none": {},
        "optimizer": _zero(offload_optimizer={"device": "cpu"}),
        "optimizer, param": _zero(offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"}),
    },
    "precision": {
        "fp32": {},
        **_HALF,
        "bf16, fp32 accumulation": {**_HALF["bf16"], "data_types": {"grad_accum_dtype": "fp32"}},
    },
    "ranks": {"2": {}, "1": {}, "4": {}},
    "accumulation": {"1": {}, "2": {"gradient_accumulation_steps": 2}, "3": {"gradient_accumulation_steps": 3}},
    "clipping": {"off": {}, "on": {"gradient_clipping": 0.5}},
    "optimizer": {
        "SGD": _optimizer("SGD", **SGD),
        "AdamW": _optimizer("AdamW", torch_adam=True, **ADAM),
        "client's SGD": {},
        "client's AdamW": {},
    },
    "overlap_comm": {"unset": {}, "true": _zero(overlap_comm=True), "false": _zero(overlap_comm=False)},
    "buckets": {
        "large": _zero(reduce_bucket_size=1_000_000, allgather_bucket_size=1_000_000),
        "small": _zero(reduce_bucket_size=300, allgather_bucket_size=300),
    },
    "partitioning": {
        "parameters persist": {},
        "all": _zero(stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=0, sub_group_size=400),
    },
}

#: Weights of rank counts: on two cores, four ranks take twice as long as two.
_OFTEN: Mapping[str, int] = {"1": 3, "2": 4, "4": 1}

#: The release whose record has all jobs. Other records have each scenario's first pinned job and one chosen at random.
FULL_RECORD = "0.18.9"

#: Releases with a record of few scenarios: those that run the lines of patches that apply to no other recorded release.
PARTIAL_RECORDS: Mapping[str, frozenset[str]] = {
    "0.12.2": frozenset(
        (
            *("all_reduced", "all_reduced_in_fp32", "all_reduced_resumed"),
            *("back_to_weights", "resumed_without_optimizer", "warm_start"),
            *("pipeline", "pipeline_evaluated", "pipeline_resumed"),
            *("sharded_bloom", "sharded_mpt", "sharded_mpt_by_names", "sharded_mpt_by_weights"),
            *("universal_pipeline_of_one_stage", "universal_pipeline_without_a_count"),
            *("universal_with_as_many_rows", "universal_with_more_rows"),
        )
    ),
    "0.13.0": frozenset(
        (
            *("experts_reduced_to_owner", "shared_experts_reduced_to_owner"),
            *("launched_on_hosts", "launched_with_exports", "launched_with_files"),
            *("two_of_experts", "two_of_experts_on_two_ranks", "usual"),
        )
    ),
    "0.13.2": frozenset(("module_hooks", "own_teacher", "pairs", "two_of_experts_on_two_ranks", "usual")),
    "0.13.4": frozenset(
        (
            *("hpz", "hpz_frozen", "hpz_in_init", "hpz_of_another_size", "hpz_resumed"),
            *("sharded_bloom", "sharded_glm", "sharded_mpt", "sharded_mpt_by_names", "sharded_mpt_by_weights"),
            *("sharded_decoder_by_groups", "sharded_decoder_by_heads", "sharded_persimmon", "sharded_unknown"),
        )
    ),
    "0.17.1": frozenset(("two_of_experts_on_two_ranks", "usual", "writer")),
    "0.17.4": frozenset(("tiled_logits",)),
    "0.18.6": frozenset(("block_three_times", "evaluated_between", "pairs", "recurrent", "usual")),
}

#: Families of jobs that a patch once broke. They run on WHOLE only, unless a script names another release.
FULL_RECORD_ONLY = frozenset(("custom_optimizers", "graphs", "lifetimes", "one_rank_more", "read_without_dsfix"))

Setting = Mapping[str, str]


@dataclass(frozen=True)
class Job:
    """pinned: whether the scenario pins this setting."""

    scenario: Scenario
    setting: Setting
    pinned: bool = False

    @property
    def id(self) -> str:
        """The scenario's name and eight characters of a digest of the setting."""
        text = json.dumps(differing(self.setting), sort_keys=True)
        return f"{self.scenario.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def ranks(self) -> int:
        return int(self.setting["ranks"])


def plain() -> dict[str, str]:
    return {name: next(iter(levels)) for name, levels in FACTORS.items()}


def one_job(**levels: str) -> dict[str, Any]:
    """For a scenario with one job: these levels, and the plain ones of the other factors."""
    setting = {**plain(), **levels}
    return {"pinned": [setting], **{name: (level,) for name, level in setting.items()}}


def differing(setting: Setting) -> dict[str, str]:
    """The levels of a setting that are not the plain ones."""
    return {name: setting[name] for name, level in plain().items() if setting[name] != level}


def possible(setting: Setting) -> bool:
    """Whether DeepSpeed accepts these levels together."""
    stage, precision = setting["stage"], setting["precision"]
    return (
        (setting["offload"] == "none" or stage in "123")
        and ("param" not in setting["offload"] or stage == "3")
        and (setting["overlap_comm"] == "unset" or stage in "123")
        and (setting["buckets"] == "large" or stage in "123")
        and (setting["partitioning"] == "parameters persist" or stage == "3")
        and ("accumulation" not in precision or (stage == "1" and setting["offload"] == "none"))
    )


def jobs() -> list[Job]:
    """All jobs, ordered by scenario name."""
    return [job for each in scenario.load().values() for job in _jobs(each)]


def jobs_of(release: str) -> list[Job]:
    """The jobs in the release's record."""
    every = [job for job in jobs() if bound(job.scenario) in ("", release)]
    if release == FULL_RECORD:
        return every
    if release in PARTIAL_RECORDS:
        return [job for job in every if bound(job.scenario) or job.scenario.name in PARTIAL_RECORDS[release]]
    job_ids = {job.id for job in samples(every)}
    for name, each in itertools.groupby(every, lambda job: job.scenario.name):
        job_ids.add(random.Random(f"{name}, {release}").choice(list(each)).id)
    return [job for job in every if job.id in job_ids]


def bound(each: Scenario) -> str:
    """The only release that the scenario is run on, "" if it is run on all."""
    return each.release or (FULL_RECORD if each.family in FULL_RECORD_ONLY else "")


def samples(every: Sequence[Job]) -> list[Job]:
    """The first pinned job of each scenario that pins any."""
    pinned = {job.scenario.name: job for job in reversed(every) if job.pinned}
    return [job for job in every if pinned.get(job.scenario.name) is job]


def sparse(every: Sequence[Job], one_in: int) -> list[Job]:
    """A stable sample: one in `one_in` of each family's jobs, at least one; all jobs of ON_WHOLE."""

    def place(job: Job) -> str:
        return hashlib.sha256(job.id.encode()).hexdigest()

    families: set[str] = set()
    for family in {job.scenario.family for job in every}:
        jobs = sorted((job for job in every if job.scenario.family == family), key=place)
        families.update(job.id for job in (jobs if family in FULL_RECORD_ONLY else jobs[::one_in]))
    return [job for job in every if job.id in families]


def _jobs(each: Scenario) -> Iterator[Job]:
    """A scenario's jobs; they do not change when other scenarios, or levels of other factors, are added."""
    allowed = {
        name: [level for level in levels if level in each.only.get(name, levels)] for name, levels in FACTORS.items()
    }
    dealt = [{"stage": stage} for stage in allowed["stage"]]
    for name in [name for name in FACTORS if name != "stage"]:
        deck = [level for level in allowed[name] for _ in range(_OFTEN[level] if name == "ranks" else 1)]
        random.Random(f"{each.name}, {name}").shuffle(deck)
        for number, setting in enumerate(dealt):
            first = number % len(deck)
            levels = [*deck[first:], *deck[:first]]
            setting[name] = next((each for each in levels if possible({**plain(), **setting, name: each})), levels[0])
    settings: set[str] = set()
    pinned = [{**plain(), **levels} for levels in each.pinned]
    for setting in (*pinned, *dealt):
        job = Job(each, setting, setting in pinned)
        if possible(setting) and job.id not in settings:
            settings.add(job.id)
            yield job


def config(setting: Setting) -> dict[str, Any]:
    """The DeepSpeed config of a setting."""
    result: dict[str, Any] = {}
    for name, levels in FACTORS.items():
        _merge(result, levels[setting[name]])
    if setting["stage"] == "0":
        result.pop("zero_optimization", None)
    return result


def _merge(target: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = copy.copy(value)
