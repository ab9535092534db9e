"""ZeRO++ hpZ: a second zero.Init, or one after an engine, fails: intra parallel group is already initialized.

Why: with `zero_hpz_partition_size` above 1 each zero.Init creates the process groups for the second copies of the
    weights. The function that creates them asserts that there are none yet: a second model (a reference or reward
    model, a teacher), a nested zero.Init and a second call of from_pretrained fail.
How: groups of the same size are reused: they consist of the same ranks, and engines reuse them, too. With another size,
    or after torch's process groups were destroyed, it fails as before.
Workaround: Scripts set `deepspeed.utils.groups._ZERO_PARAM_INTRA_PARALLEL_GROUP` to None before the second zero.Init,
    which then creates its own groups with the patch, too. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CREATE = "deepspeed.utils.groups:_create_zero_param_parallel_group"
_RANKS = "deepspeed.comm.comm:get_all_ranks_from_group"
_MESSAGE = "'ZeRO parameter intra parallel group is already initialized'"
_ASSERTION = f"assert _ZERO_PARAM_INTRA_PARALLEL_GROUP is None, {_MESSAGE}"


PATCH = Patch(
    title="ZeRO++ hpZ, second zero.Init: ZeRO parameter intra parallel group is already initialized",
    severity=Severity.CRASH,
    # the bug is older: before 0.13.0, hpZ does not run beside the torch that is used here
    affects={"deepspeed": ">=0.13.0"},
    changes=(
        Edit(
            _CREATE,
            before=_ASSERTION,
            code="if _ZERO_PARAM_INTRA_PARALLEL_GROUP is not None:\n"
            "    ranks = dist.get_all_ranks_from_group(group=_ZERO_PARAM_INTRA_PARALLEL_GROUP)\n"
            "    if len(ranks) == min(group_size, dist.get_world_size()):\n"
            "        return",
            effect="process groups of the same size were reused (unpatched: AssertionError)",
            when="_ZERO_PARAM_INTRA_PARALLEL_GROUP is not None and min(group_size, dist.get_world_size())"
            " == len(dist.get_all_ranks_from_group(group=_ZERO_PARAM_INTRA_PARALLEL_GROUP))",
        ),
    ),
    symptom=r"ZeRO parameter intra parallel group is already initialized",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/4901": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/7066": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8361": "proposed fix",
    },
    present=(
        Source(_CREATE, _ASSERTION),
        Source(_RANKS, "try:\n    ...\nexcept (RuntimeError, ValueError):\n    ..."),
    ),
    ranks=2,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    lab.require_ranks(2)
    if Version(lab.deepspeed.__version__) < Version("0.13.0"):
        raise CannotTell("before 0.13.0, hpZ does not run beside this torch")
    torch, models, reference = lab.torch, lab.models, lab.reference
    steps = [[models.regression_batch(rank, step) for rank in range(2)] for step in range(1)]
    config = {
        "train_batch_size": 2 * len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0},
    }
    zero = lab.deepspeed.zero
    linear = torch.nn.functional.linear
    try:
        made = []
        for seed in range(2):
            model = models.MLP(seed=seed)
            zero.Init(module=model, config_dict_or_path=config)
            made.append(model)
        engines = [lab.initialize(model, config, model_parameters=model.parameters()) for model in made]
        for batches in steps:
            inputs, targets = (tensor.to(lab.device) for tensor in batches[lab.rank])
            for engine in engines:
                engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
                engine.step()
    except AssertionError as error:
        if "intra parallel group is already initialized" in str(error):
            raise BugPresent(f"the second zero.Init: {error}") from error
        raise
    finally:
        torch.nn.functional.linear = linear  # zero.Init leaves its own
    found = []
    for seed, engine in enumerate(engines):
        plain = models.MLP(seed=seed)
        right = reference.train(plain, steps, plain.loss, "SGD", lr=_LEARNING_RATE).parameters
        found.append(reference.compare(lab.parameters(engine), right, after=f"model {seed}, after {len(steps)} steps"))
    return "; ".join(found)
