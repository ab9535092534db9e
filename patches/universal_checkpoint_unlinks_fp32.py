"""ZeRO-1 and 2: after loading a universal checkpoint safe_get_full_fp32_param gives one of the optimizer's states.

Why: since 0.14.1 loading a universal checkpoint links each parameter to a part of the optimizer's last state (exp_avg
    or exp_avg_sq) where it has to be linked to its fp32 weights. From there on safe_get_full_fp32_param gives that
    state, safe_set_full_fp32_param writes into it, and a further universal checkpoint that the same engine loads puts
    its weights there: the engine goes on with the weights that it had and the new one's states. The states' own links
    are to copies in host memory until the first step, or for good if the engine had made one before the load:
    safe_get_full_optimizer_state then gives the state as loaded, and what safe_set_full_optimizer_state writes is lost.
How: the state is linked as a state.
Changes: jobs that have loaded a universal checkpoint with ZeRO-1 or 2 (bf16's own optimizer among them) read and write
    weights and states by these functions as without the load. Training itself was right, and what it saved, too,
    unless one of the two safe_set functions was called after the load, or the engine loaded a further universal
    checkpoint.
Upstream: fixed in 0.19.7; brought by https://github.com/deepspeedai/DeepSpeed/pull/5263 (0.14.1).
Retire: when DeepSpeed 0.19.6 is no longer supported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MAPPING = "lp._hp_mapping"

PATCH = Patch(
    title="ZeRO-1/2: after loading a universal checkpoint safe_get_full_fp32_param gives a state of the optimizer",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.1,<0.19.7"},
    changes=(
        Edit(
            "deepspeed.utils.tensor_fragment:map_to_flat_opt_states",
            replace=f"{_MAPPING}.hp_fragment = hp_fragment",
            code=f"{_MAPPING}.optim_fragment[key] = hp_fragment",
        ),
    ),
    symptom="",
    upstream=("https://github.com/deepspeedai/DeepSpeed/pull/5263",),
    fixed_in="0.19.7",
)

_STEPS = 4
_STATES = ("exp_avg", "exp_avg_sq")
_OPTIONS: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.0}


def reproduce(lab: Lab) -> str:
    from dsfix.lab.checkpoints import convert_to_universal, load_whole_files, train

    load_whole_files()
    _ = lab.torch
    from packaging.version import Version

    if Version(lab.deepspeed.__version__) < Version("0.14.1"):
        raise CannotTell("ZeRO-1 needs a Megatron-DeepSpeed job to load a universal checkpoint up to 0.14.0")
    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference

    batches = [regression_batch(rank=0, step=step) for step in range(_STEPS)]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {**_OPTIONS, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    model = MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, batches[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half", client_state={"universal_checkpoint_info": {}})
    tag = convert_to_universal(lab, lab.tmp, "half")
    model = MLP(seed=1)
    config["checkpoint"] = {"load_universal": True}
    engine = lab.initialize(model, config, model_parameters=model.parameters())

    half, whole = (_plain(batches[:count]) for count in (_STEPS // 2, _STEPS))
    engine.load_checkpoint(str(lab.tmp), tag=tag)
    first = _given(engine)
    train(lab, engine, batches[_STEPS // 2 :])
    last = _given(engine)
    engine.load_checkpoint(str(lab.tmp), tag=tag)
    again = largest_difference(lab.parameters(engine), half[""])

    loaded = largest_difference(first[""], half[""])
    if any(largest_difference(first[""], half[state]).relative < 1e-4 for state in _STATES) and again.relative > 1e-4:
        raise BugPresent(f"safe_get_full_fp32_param gives the optimizer's state: {loaded}; loaded once more: {again}")
    trained = [largest_difference(each, whole[state]) for state, each in last.items()]
    worst = max(loaded, *trained, again, key=lambda each: each.relative)
    assert worst.relative < 1e-4, f"loaded: {loaded}; trained on: {trained}; loaded once more: {again}"
    done = "fp32 weights and states, loaded, trained on and loaded once more, are plain PyTorch's"
    return f"{done} within {worst.relative:.1e}"


def _given(engine: Any) -> dict[str, dict[str, Any]]:
    """What the engine's parameters have by name: their fp32 weights (""), and the optimizer's states."""
    from deepspeed import utils  # type: ignore[import-not-found,unused-ignore]

    parameters = dict(engine.module.named_parameters())
    weights = {name: utils.safe_get_full_fp32_param(p).cpu() for name, p in parameters.items()}
    states = {
        state: {name: utils.safe_get_full_optimizer_state(p, state).cpu() for name, p in parameters.items()}
        for state in _STATES
    }
    return {"": weights, **states}


def _plain(batches: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """The same, of plain PyTorch after one step with each batch."""
    from torch.optim import AdamW

    from dsfix.lab.models import MLP

    model = MLP()
    optimizer = AdamW(model.parameters(), **_OPTIONS)
    for batch in batches:
        optimizer.zero_grad()
        loss: Any = model.loss(*batch)
        loss.backward()
        optimizer.step()
    parameters = dict(model.named_parameters())
    states = {state: {name: optimizer.state[p][state] for name, p in parameters.items()} for state in _STATES}
    return {"": {name: p.detach() for name, p in parameters.items()}, **states}
