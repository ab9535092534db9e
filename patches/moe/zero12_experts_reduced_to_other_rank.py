"""ZeRO-1/2, MoE, `use_multi_rank_bucket_allreduce` off: experts' gradients are not summed on the rank that owns them.

Why: without multi-rank buckets each part of a gradient is reduced to the rank that owns it, and that rank copies the
    result back. The owner is numbered within the ranks that hold a copy of the expert, but compared with the rank among
    all data-parallel ranks: with ep_size > 1 most owners keep what they computed themselves. Nothing fails.
How: it is compared with the rank in the same group, as in 0.19.8 and later. For other parameters both groups are the
    same.
Changes: jobs with "use_multi_rank_bucket_allreduce": false and 1 < ep_size < ranks: all updates of experts, and with
    clipping all others. A checkpoint written without the patch can be resumed.
Workaround: Jobs leave `use_multi_rank_bucket_allreduce` on, or keep all experts on each rank (`ep_size` 1).
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.job import Job
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_COPY = f"{_OPTIMIZER}.allreduce_and_copy"
_WRONG, _RIGHT = (f"rank == dist.get_rank(group={group})" for group in ("self.dp_process_group", "process_group"))


def _met(job: Job) -> bool:
    several = job.ranks is None or job.ranks > 2
    return (
        job.experts is True
        and job.stage in (1, 2)
        and several
        and job.get("zero_optimization", "use_multi_rank_bucket_allreduce") is False
    )


PATCH = Patch(
    title="ZeRO-1/2 + MoE without multi-rank buckets: experts' gradients are not summed on the rank that owns them",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.4,<0.19.8"},
    changes=(
        Edit(
            _COPY,
            replace=_WRONG,
            code=_RIGHT,
            effect="the owner of an expert's gradient got the ranks' sum (unpatched: it keeps its own part)",
            # a tensor alone in its bucket is reduced in place
            when="rank == dist.get_rank(group=process_group) != dist.get_rank(group=self.dp_process_group)"
            " and dist.get_world_size(group=process_group) > 1"
            " and allreduced.data_ptr() != small_bucket[0].data_ptr()",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/4695": "introduced in 0.12.4"},
    fixed_in="0.19.8",
    present=(Source(_COPY, "self.dp_process_group if process_group is None else process_group"),),
    fixed=(Source(_COPY, _RIGHT),),
    ranks=4,
    config=_met,
)

_LEARNING_RATE, _RANKS = 0.1, 4


def reproduce(lab: Lab) -> str:
    lab.require_ranks(_RANKS)
    torch, models, reference = lab.torch, lab.models, lab.reference
    from ._experts import Mixture, train

    if not hasattr(_zero_config(lab), "use_multi_rank_bucket_allreduce"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no use_multi_rank_bucket_allreduce")
    batches = [models.regression_batch(rank, 0) for rank in range(_RANKS)]
    model = Mixture()
    right = reference.train(model, [batches], model.loss, "SGD", lr=_LEARNING_RATE).parameters

    # ranks 0 and 1, and ranks 2 and 3, share the experts: each pair has its part of the sum
    model = Mixture()
    wrong = dict(right)
    sums = [sum(model.loss(*batch) for batch in pair) / _RANKS for pair in (batches[:2], batches[2:])]
    for number, expert in enumerate(model.experts):
        parameters = dict(expert.named_parameters())
        first, last = (
            _flat(torch, torch.autograd.grad(each, list(parameters.values()), retain_graph=True)) for each in sums
        )
        half = len(first) // 2
        # rank 0, the owner of the first half of expert 0, is the only one that has the same number in both groups
        gradient = torch.cat([(first if number else first + last)[:half], last[half:]])
        after = _flat(torch, list(parameters.values())) - _LEARNING_RATE * gradient
        for name, parameter in parameters.items():
            wrong[f"experts.{number}.{name}"] = after[: parameter.numel()].view_as(parameter)
            after = after[parameter.numel() :]

    reports = []
    for stage in (1, 2):
        zero = {"stage": stage, "use_multi_rank_bucket_allreduce": False}
        seen = train(lab, 2, [batches], _LEARNING_RATE, zero_optimization=zero)
        reports.append(
            reference.compare(
                seen,
                {name: right[name] for name in seen},
                {"those of experts' gradients that were not summed": {name: wrong[name] for name in seen}},
                after=f"ZeRO-{stage}: after a step of {_RANKS} ranks with 2 copies of each expert",
            )
        )
    return "; ".join(reports)


def _zero_config(lab: Lab) -> Any:
    _ = lab.deepspeed
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    return DeepSpeedZeroConfig()


def _flat(torch: Any, tensors: Any) -> Any:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
