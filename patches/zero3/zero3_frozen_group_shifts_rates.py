"""ZeRO-3: parameter groups after a frozen group use the learning rate of the previous group.

Why: ZeRO-3 numbers the parameter groups that have something to train, and takes learning rate, weight decay and all
    other options of a step from the optimizer's group of that number. The optimizer also has the groups whose
    parameters were all frozen when the engine was made: after one such group, each group uses the options of the
    previous group; after two, of the group two before. With a frozen backbone at 1e-5 before a head at 1e-3, the head
    is trained at 1e-5. Nothing fails.
How: the number is the optimizer group's, as in 0.19.3. The format of checkpoints does not change.
Changes: jobs with a frozen or empty parameter group before another; all others are bit-identical. Checkpoints written
    with and without the patch load with and without it, and one of 0.19.3 loads with it; 0.19.3 itself rejects both.
    When a job resumes from a checkpoint written without it, the weights that were trained with other options stay.
Workaround: Scripts leave frozen parameters out of the optimizer, or make them its last group. You can keep it. Options
    moved by one group to make up for the bug have to move back: they cannot be distinguished from intended ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_CREATE = f"{_OPTIMIZER}._create_fp16_partitions_with_defragmentation"


def trained_groups(optimizer: Any) -> list[int]:
    """The places, among the optimizer's groups, of those that have something to train. For use in the constructor."""
    if _shifts(optimizer.optimizer.param_groups):
        took_effect(__name__, "groups after a frozen one used their own options (unpatched: the previous group's)")
    return [
        place
        for place, group in enumerate(optimizer.optimizer.param_groups)
        if any(parameter.requires_grad for parameter in group["params"])
    ]


def _shifts(groups: list[dict[str, Any]]) -> bool:
    """Whether a group is stepped with options other than its own without the patch."""
    options = [{name: value for name, value in group.items() if isinstance(value, (int, float))} for group in groups]
    own = [each for each, group in zip(options, groups) if any(p.requires_grad for p in group["params"])]
    return own != options[: len(own)]


def as_before(saved: dict[str, Any]) -> dict[str, Any]:
    """The optimizer state for a checkpoint, with the parameters in the groups where it has them without the patch."""
    groups = saved.get("param_groups", ())
    filled = [group["params"] for group in groups if group["params"]]
    if len(filled) == len(groups):
        return saved
    places = filled + [[] for _ in range(len(groups) - len(filled))]
    return {**saved, "param_groups": [{**group, "params": place} for group, place in zip(groups, places)]}


def in_order(optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """The optimizer state of a checkpoint, if need be with the parameters moved to the groups that they belong to."""
    groups = saved.get("param_groups", ())
    numbers = [len(group["params"]) for group in groups]
    own = [len(group["params"]) for group in optimizer.optimizer.param_groups]
    if numbers == own or len(numbers) != len(own) or list(filter(None, numbers)) != list(filter(None, own)):
        return saved
    parts = (group["params"] for group in groups if group["params"])
    return {**saved, "param_groups": [{**group, "params": next(parts) if n else []} for group, n in zip(groups, own)]}


PATCH = Patch(
    title="ZeRO-3: parameter groups after a frozen group use the learning rate of the previous group",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.3"},
    changes=(
        Edit(
            _CREATE,
            after="param_groups: List[List[Parameter]] = tuple(\n"
            "    self._create_fp16_sub_groups(param_group['params']) for param_group in fp16_param_groups)",
            code="trained = trained_groups(self)",
            uses=(trained_groups,),
        ),
        Edit(
            _CREATE,
            replace="self.sub_group_to_group_id[sub_group_idx] = param_group_idx",
            code="self.sub_group_to_group_id[sub_group_idx] = trained[param_group_idx]",
        ),
        Edit(
            f"{_OPTIMIZER}._rigid_state_dict",
            replace="state_dict[OPTIMIZER_STATE_DICT] = self.optimizer.state_dict()",
            # loading a universal checkpoint takes it for this form, 0.14.5 to 0.17.6
            code="state_dict[OPTIMIZER_STATE_DICT] = as_before(self.optimizer.state_dict())",
            uses=(as_before,),
        ),
        Edit(
            f"{_OPTIMIZER}._rigid_load_state_dict",
            replace="self.optimizer.load_state_dict(state_dict[OPTIMIZER_STATE_DICT])",
            code="self.optimizer.load_state_dict(in_order(self, state_dict[OPTIMIZER_STATE_DICT]))",
            uses=(in_order,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4277": "introduced",
        "https://github.com/deepspeedai/DeepSpeed/pull/8060": "fixed in 0.19.3",
    },
    fixed_in="0.19.3",
    # groups without anything to train are left out
    present=(
        Source(
            f"{_OPTIMIZER}._get_trainable_parameter_groups",
            "if len(trainable_params) == 0:\n    continue",
        ),
    ),
    fixed=(
        Source(
            _CREATE,
            "self.sub_group_to_group_id[sub_group_idx] ="
            " fp16_param_groups[param_group_idx].get('_ds_source_param_group_id', param_group_idx)",
        ),
    ),
)

_STEPS, _MOMENTUM = 2, 0.9


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from packaging.version import Version

    from ..checkpoint import _checkpoints as checkpoints

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(2 * _STEPS)]

    def groups(model: Any, rates: tuple[float, float, float]) -> list[dict[str, Any]]:
        """Head, first block (frozen), second block."""
        model.blocks[0].requires_grad_(False)
        parts = (model.head, model.blocks[0], model.blocks[1])
        return [{"params": list(part.parameters()), "lr": rate} for part, rate in zip(parts, rates)]

    def plain(rates: tuple[float, float, float], steps: int) -> dict[str, Any]:
        model = lab.models.MLP()
        optimizer = torch.optim.SGD(groups(model, rates), momentum=_MOMENTUM)
        for batch in batches[:steps]:
            optimizer.zero_grad()
            model.loss(*batch).backward()
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    def make() -> Any:
        model = lab.models.MLP()
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": _MOMENTUM}},
            "zero_optimization": {"stage": 3},
        }
        return lab.initialize(model, config, model_parameters=groups(model, (0.1, 0.002, 0.02)))

    engine = make()
    checkpoints.train(lab, engine, batches[:_STEPS])
    found = lab.reference.compare(
        lab.parameters(engine),
        plain((0.1, 0.002, 0.02), _STEPS),
        {"those of the second block at the frozen group's rate": plain((0.1, 0.0, 0.002), _STEPS)},
        after=f"after {_STEPS} steps",
    )
    engine.save_checkpoint(str(lab.tmp), tag="right")
    engine.save_checkpoint(str(lab.tmp), tag="shifted")
    [path] = (lab.tmp / "shifted").glob("*optim_states.pt")
    saved = torch.load(path, weights_only=False)
    _, frozen, last = saved["optimizer_state_dict"]["optimizer_state_dict"]["param_groups"]
    frozen["params"], last["params"] = last["params"], frozen["params"]  # as in 0.19.3
    torch.save(saved, path)
    loaded = ["right"]
    if Version(lab.deepspeed.__version__) < Version("0.19.3"):  # which refuses the other
        loaded.append("shifted")
    for tag in loaded:
        engine = make()
        engine.load_checkpoint(str(lab.tmp), tag=tag)
        checkpoints.train(lab, engine, batches[_STEPS:])
        difference = lab.reference.largest_difference(lab.parameters(engine), plain((0.1, 0.002, 0.02), len(batches)))
        assert difference.relative < 1e-4, f"resumed from the checkpoint {tag}: {difference}"
    return f"{found}, and after {len(batches)} when resumed"
