"""ZeRO-1/2 with `elastic_checkpoint` resumes with moments that belong to other weights.

Why: on load, the optimizer states saved by the ranks that share a group are joined and partitioned again. ZeRO pads a
    group to a multiple of twice the number of these ranks; the joined states are padded to a multiple of that number
    only. Where the two differ, as on two ranks with a group of 4k + 1 or 4k + 2 elements, each rank's part is one
    element short, and rank r's part begins r elements too early. There is no error, and the weights are correct. A
    single rank is not affected.
How: the joined states are padded like the group if they have an element for each weight. Other states (one number, one
    scale per block of weights, `step` as a tensor) are left as they are.
Changes: a job that loads an elastic checkpoint continues with the states that were saved; learning rates are not among
    them. A job that once loaded a checkpoint without the patch has saved shifted states, which later checkpoints carry
    on.
Workaround: None in the script; leaving `elastic_checkpoint` out of the config before saving helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PARTITION = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer._partition_base_optimizer_state"
_RANKS = "dist.get_world_size(group=self.real_dp_process_group[group_id])"
_AS_THE_WEIGHTS = """
part = all_partition_states[0]
if torch.is_tensor(part) and part.numel() == self.partition_size[group_id]:
    alignment *= self.nccl_start_alignment_factor
"""
_SHIFTED = """(
    alignment > 1
    and torch.is_tensor(all_partition_states[0])
    and all_partition_states[0].numel() == self.partition_size[group_id]
    and -sum(map(torch.numel, all_partition_states)) % alignment
    != -sum(map(torch.numel, all_partition_states)) % (alignment * self.nccl_start_alignment_factor)
)"""

PATCH = Patch(
    title="ZeRO-1/2 + elastic_checkpoint: the optimizer states are loaded shifted relative to the weights",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.13.2"},
    changes=(
        Edit(
            _PARTITION,
            after=f"alignment = {_RANKS}",
            code=_AS_THE_WEIGHTS,
            effect="joined optimizer states were padded like the weights (unpatched: shifted)",
            when=_SHIFTED,
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5105": "fixed in 0.13.2",
    },
    fixed_in="0.13.2",
    ranks=2,
    fixed=(Source(_PARTITION, f"alignment = self.nccl_start_alignment_factor * {_RANKS}"),),
)

_STEPS = 4
_OPTIONS = {"lr": 0.05, "momentum": 0.9}


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    from ._checkpoints import load_whole_files, train

    load_whole_files()
    torch, models, reference = lab.torch, lab.models, lab.reference

    class Counting(torch.optim.SGD):  # type: ignore[name-defined,misc,unused-ignore]
        """Counts steps in its groups, as DeepSpeed's own and apex's optimizers do."""

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
            return super().step(closure)

    batches = [[models.regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    mine = [batch[lab.rank] for batch in batches]

    def start(seed: int) -> Any:
        model = models.MLP(seed=seed)
        config = {
            "train_micro_batch_size_per_gpu": len(mine[0][0]),
            "zero_optimization": {"stage": 1, "elastic_checkpoint": True},
        }
        return lab.initialize(model, config, optimizer=Counting(model.parameters(), **_OPTIONS))

    def momentum(engine: Any) -> Any:
        """The first rank's momentum, on all ranks."""
        states: Any = list(engine.optimizer.optimizer.state.values())
        found = states[0]["momentum_buffer"].detach().cpu().clone()
        torch.distributed.broadcast(found, 0)
        return found

    engine = start(seed=0)
    train(lab, engine, mine[: _STEPS // 2])
    saved = momentum(engine)
    engine.save_checkpoint(str(lab.tmp), tag="half")
    engine = start(seed=1)
    engine.load_checkpoint(str(lab.tmp), tag="half")
    loaded = momentum(engine)
    train(lab, engine, mine[_STEPS // 2 :])

    model = models.MLP()
    expected = reference.train(model, batches, model.loss, "SGD", **_OPTIONS).parameters
    difference = reference.largest_difference(lab.parameters(engine), expected)
    wrong = (loaded != saved).nonzero()
    if len(wrong) == 1 and not loaded[-1] and difference.relative > 1e-3:
        raise BugPresent(f"rank 0 has lost the last of its {len(saved)} momenta; after {_STEPS} steps {difference}")
    assert not len(wrong), f"{len(wrong)} of {len(saved)} momenta differ"
    assert difference.relative < 1e-4, f"after {_STEPS} steps {difference}"
    return f"resumed after {_STEPS // 2} of {_STEPS} steps the parameters match plain PyTorch: {difference}"
