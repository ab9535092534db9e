"""ZeRO-1/2: after loading a universal checkpoint, safe_get_full_fp32_param returns one of the optimizer's states.

Why: since 0.14.1 loading a universal checkpoint links each parameter to a part of the optimizer's last state (exp_avg
    or exp_avg_sq) instead of its fp32 weights. From then on safe_get_full_fp32_param returns that state,
    safe_set_full_fp32_param writes into it, and a further universal checkpoint loaded by the same engine puts its
    weights there. The states' own links point to copies in host memory until the first step, for good if a step was
    made before the load: safe_get_full_optimizer_state is stale, and what safe_set_full_optimizer_state writes is lost.
How: the state is linked as a state.
Changes: these functions read and write weights and states as without the load. Training itself was correct, and so was
    what it saved, unless one of the two safe_set functions was called after the load, or the engine loaded a further
    universal checkpoint.
Workaround: After the load, scripts link them again with the optimizer's `_link_all_hp_params` and, with
    `_hp_optimizer_states_linked` reset, `_lazy_init_hp_params_optimizer_state`. You can keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MAPPING = "lp._hp_mapping"

PATCH = Patch(
    title="ZeRO-1/2: after loading a universal checkpoint, safe_get_full_fp32_param returns an optimizer state",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.14.1,<0.19.7"},
    changes=(
        Edit(
            "deepspeed.utils.tensor_fragment:map_to_flat_opt_states",
            replace=f"{_MAPPING}.hp_fragment = hp_fragment",
            code=f"{_MAPPING}.optim_fragment[key] = hp_fragment",
            effect=RAN,  # the script may not use what is linked
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/5263": "introduced in 0.14.1",
    },
    fixed_in="0.19.7",
)

_STEPS = 4
_STATES = ("exp_avg", "exp_avg_sq")
_OPTIONS: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.0}


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    from dsfix.lab.universal import convert_to_universal

    from ._checkpoints import load_whole_files, train

    load_whole_files()
    if Version(lab.deepspeed.__version__) < Version("0.14.1"):
        raise CannotTell("before 0.14.1 ZeRO-1 loads a universal checkpoint only in a Megatron-DeepSpeed job")
    largest_difference = lab.reference.largest_difference

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "AdamW", "params": {**_OPTIONS, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    model = lab.models.MLP()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, batches[: _STEPS // 2])
    engine.save_checkpoint(str(lab.tmp), tag="half", client_state={"universal_checkpoint_info": {}})
    tag = convert_to_universal(lab, lab.tmp, "half")
    model = lab.models.MLP(seed=1)
    config["checkpoint"] = {"load_universal": True}
    engine = lab.initialize(model, config, model_parameters=model.parameters())

    half, whole = (_plain(lab, batches[:count]) for count in (_STEPS // 2, _STEPS))
    engine.load_checkpoint(str(lab.tmp), tag=tag)
    first = _given(engine)
    train(lab, engine, batches[_STEPS // 2 :])
    last = _given(engine)
    engine.load_checkpoint(str(lab.tmp), tag=tag)
    again = largest_difference(lab.parameters(engine), half[""])

    loaded = largest_difference(first[""], half[""])
    if any(largest_difference(first[""], half[state]).relative < 1e-4 for state in _STATES) and again.relative > 1e-4:
        raise BugPresent(f"safe_get_full_fp32_param returns an optimizer state: {loaded}; loaded again: {again}")
    trained = [largest_difference(each, whole[state]) for state, each in last.items()]
    worst = max(loaded, *trained, again, key=lambda each: each.relative)
    assert worst.relative < 1e-4, f"loaded: {loaded}; trained further: {trained}; loaded again: {again}"
    return (
        "fp32 weights and states match plain PyTorch when loaded, trained further and loaded again, within"
        f" {worst.relative:.1e}"
    )


def _given(engine: Any) -> dict[str, dict[str, Any]]:
    """The fp32 weights (under "") and the optimizer states of the engine's parameters, by name."""
    from deepspeed import utils

    parameters = dict(engine.module.named_parameters())
    weights = {name: utils.safe_get_full_fp32_param(p).cpu() for name, p in parameters.items()}
    states = {
        state: {name: utils.safe_get_full_optimizer_state(p, state).cpu() for name, p in parameters.items()}
        for state in _STATES
    }
    return {"": weights, **states}


def _plain(lab: Lab, batches: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """The same of plain PyTorch after one step with each batch."""
    model = lab.models.MLP()
    optimizer = lab.torch.optim.AdamW(model.parameters(), **_OPTIONS)
    for batch in batches:
        optimizer.zero_grad()
        loss: Any = model.loss(*batch)
        loss.backward()
        optimizer.step()
    parameters = dict(model.named_parameters())
    states = {state: {name: optimizer.state[p][state] for name, p in parameters.items()} for state in _STATES}
    return {"": {name: p.detach() for name, p in parameters.items()}, **states}
