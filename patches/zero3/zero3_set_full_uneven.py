"""ZeRO-3: `safe_set_full_fp32_param` fails for a parameter whose size the ranks do not divide.

Why: each rank cuts its part out of the full value. Parts are equally long, so if the ranks do not divide the number of
    elements, the last ones extend beyond its end: "start (1) + length (1) exceeds dimension size (1)" on these ranks, in
    `safe_set_full_fp32_param` and `safe_set_full_optimizer_state`. The others go on, and wait in the next collective.
How: on these ranks the value is padded with zeros. Other values are cut as before.
Workaround: Scripts set each rank's part with `safe_set_local_fp32_param` and `safe_set_local_optimizer_state` instead.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_SET = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.set_full_hp_param"
_PART = "fp32_opt_state_partition.numel()"
_CUT = f"value_partition = value.flatten().narrow(0, {_PART} * my_rank, {_PART})"
# MiCS from 0.19.3 on numbers all ranks, and not those of a shard group: the part of these would be zeros
_BEYOND = f"my_rank < self.partition_count and {_PART} * (my_rank + 1) > value.numel()"

PATCH = Patch(
    title="ZeRO-3: safe_set_full_fp32_param fails for a parameter whose size the ranks do not divide",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _SET,
            before=_CUT,
            code=f"""
if {_BEYOND}:
    value = torch.nn.functional.pad(value.flatten(), (0, {_PART} * (my_rank + 1) - value.numel()))
""",
            effect="a parameter whose size the ranks do not divide was set (unpatched: RuntimeError)",
            when=_BEYOND,
        ),
    ),
    symptom=r"in set_full_hp_param\n[\s\S]{0,300}RuntimeError: start \(\d+\) \+ length \(\d+\) exceeds dimension size",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4192": "introduced",
    },
    present=(Source(_SET, _CUT),),
    ranks=2,
    config=lambda job: job.stage == 3,
)

_STEPS, _RATE = 2, 0.01


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    return "; ".join(_train(lab, *each) for each in ((100_000, "none"), (0, "none"), (0, "cpu")))


def _train(lab: Lab, persistent: int, offload: str) -> str:
    torch, models, reference = lab.torch, lab.models, lab.reference
    utils = lab.deepspeed.utils
    batches = [models.regression_batch(rank=0, step=step) for step in range(_STEPS + 1)]

    model = models.MLP()  # the bias of the head is one element
    plain = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(plain.values(), lr=_RATE)
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        model.loss(*batch).backward()
        if number == _STEPS:
            with torch.no_grad():
                for parameter in plain.values():
                    parameter.mul_(0.5)
                    optimizer.state[parameter]["exp_avg"].mul_(-1)
            set_to = {name: parameter.detach().clone() for name, parameter in plain.items()}
        optimizer.step()

    model = models.MLP()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {"lr": _RATE}},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": persistent,
            "offload_optimizer": {"device": offload},
        },
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    read = {}
    for number, (inputs, targets) in enumerate(batches):
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        if number == _STEPS:
            for name, parameter in engine.module.named_parameters():
                value = utils.safe_get_full_fp32_param(parameter) * 0.5
                state = utils.safe_get_full_optimizer_state(parameter, "exp_avg") * -1
                try:
                    utils.safe_set_full_fp32_param(parameter, value)
                    utils.safe_set_full_optimizer_state(parameter, state, "exp_avg")
                except RuntimeError as error:
                    if "exceeds dimension size" not in str(error):
                        raise
                    raise BugPresent(f"on rank {lab.rank}: RuntimeError for {name}, {error}") from error
                read[name] = utils.safe_get_full_fp32_param(parameter).detach().cpu()
        engine.step()
    job = f"with a persistence threshold of {persistent} and offload to {offload}"
    seen = reference.compare(read, set_to, after=f"{job}, set")
    right = {name: parameter.detach() for name, parameter in plain.items()}
    return f"{seen}; {reference.compare(lab.parameters(engine), right, after='after one step more')}"
