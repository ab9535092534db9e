"""Universal checkpoints with torch 2.6 or later: UnpicklingError, "Weights only load failed".

Why: the files of a ZeRO checkpoint, and the universal checkpoint's `optimizer_state.pt`, hold more than tensors:
    DeepSpeed's own ZeroStageEnum, LossScaler and fragment_address, and the client state. Through 0.15.4
    `ds_to_universal`, and `load_checkpoint` with `load_universal`, read them with `torch.load`'s default, which torch
    2.6 changed to `weights_only=True`.
How: `weights_only=False` for these files, as before torch 2.6 and since DeepSpeed 0.16.0. This unpickles, which can run
    code: only files in the given directories. TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 still applies. The converter is a
    separate program: use `python -m dsfix run python -m deepspeed.checkpoint.ds_to_universal …`. Before 0.14.5 it is a
    different program, which is not patched.
Workaround: Scripts set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1, or replace `torch.load` by a function that passes
    `weights_only=False`. You can keep it.
"""

from __future__ import annotations

from pickle import UnpicklingError
from typing import TYPE_CHECKING

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

from ._torch_load import load_whole

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CHECKPOINT = "deepspeed.checkpoint"
_CONVERTER = f"{_CHECKPOINT}.ds_to_universal"
_MODEL = f"{_CHECKPOINT}.deepspeed_checkpoint:DeepSpeedCheckpoint"
_STATE = f"{_CHECKPOINT}.zero_checkpoint:ZeROCheckpoint.get_state_for_rank"
_STAGE3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_LOAD = "load_hp_checkpoint_state_from_checkpoint_dir"
_CPU = "map_location=torch.device('cpu')"
_FULL = "weights_only=False"
#: target, the file that it reads, what becomes of it
_READS = (
    (f"{_CONVERTER}:extract_zero_shards_stage3", "optim_files[dp_index], map_location='cpu'", "state_dict = {}"),
    (f"{_CONVERTER}:_parse_model_states_stage3", f"files[0], {_CPU}", "return {}[PARAM_SHAPES]"),
    (f"{_CONVERTER}:_save_optimizer_state_stage3", f"optim_files[0], {_CPU}", "sd = {}"),
    (f"{_CONVERTER}:_get_zero_stage", f"optim_files[0], {_CPU}", "state_dict = {}"),
    (f"{_CONVERTER}:_inject_missing_state", f"ds_checkpoint.mp_rank_files[0], {_CPU}", "sd = {}"),
    (f"{_CONVERTER}:main", f"mp_rank_file, {_CPU}", "mp_sd = {}"),
    (f"{_MODEL}._build_global_state", f"self.mp_rank_files[0], {_CPU}", "sd = {}"),
    (f"{_MODEL}.get_iteration", f"self.mp_rank_files[0], {_CPU}", "sd = {}"),
    (f"{_MODEL}._get_checkpoint_value", f"self.mp_rank_files[0], {_CPU}", "sd = {}"),
    (_STATE, f"state_file, {_CPU}", "sd = {}"),
    (f"deepspeed.runtime.base_optimizer:ZeROOptimizer.{_LOAD}", "optim_state_path", "optim_sd = {}"),
    (
        f"deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.{_LOAD}_stage3",
        "optim_state_path",
        "optim_sd = {}",
    ),
)

PATCH = Patch(
    title="ds_to_universal and loading a universal checkpoint fail with torch 2.6 or later: Weights only load failed",
    severity=Severity.CRASH,
    # pre-releases: NVIDIA's containers have 2.6.0a0
    affects={"deepspeed": ">=0.14.5,<0.16.0", "torch": ">=2.6.0.dev0"},
    changes=tuple(
        Edit(
            target,
            replace=used.format(f"torch.load({what})"),
            code=used.format(f"load_whole(torch.load, {what})"),
            uses=(load_whole,),
            effect=RAN,  # torch reads some files either way
        )
        for target, what, used in _READS
    ),
    symptom=r"(ds_to_universal\.py|load_hp_checkpoint_state_from_checkpoint_dir)[\s\S]*Weights only load failed",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6751": "fixed in 0.16.0",
    },
    fixed_in="0.16.0",
    fixed=(Source(_STATE, f"torch.load(state_file, {_CPU}, {_FULL})"),),
    config=lambda job: job.get("checkpoint", "load_universal") is True and job.stage in (1, 2, 3),
)

_STEPS = 2


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    from ._checkpoints import refused

    version = Version(lab.deepspeed.__version__)
    if version < Version("0.14.5"):
        raise CannotTell(f"deepspeed {version} has no universal checkpoint of ZeRO-3")
    try:
        differences = [_resume(lab, stage) for stage in (1, 3)]
    except UnpicklingError as error:
        for module in ("ds_to_universal", "base_optimizer", "stage3"):
            if what := refused(error, module):
                raise BugPresent(f"{module}: {what}") from error
        raise
    return f"universal checkpoints of ZeRO-1 and 3 match the model's weights within {max(differences):.1e}"


def _resume(lab: Lab, stage: int) -> float:
    """The largest relative difference from the saved parameters after conversion and load."""
    from dsfix.lab.universal import convert_to_universal

    from ._checkpoints import train

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage},
    }
    model, root = lab.models.MLP(), lab.tmp / str(stage)
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    train(lab, engine, [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)])
    saved = lab.parameters(engine)
    engine.save_checkpoint(str(root), tag="saved")
    tag = convert_to_universal(lab, root, "saved")
    model = lab.models.MLP(seed=1)
    config["checkpoint"] = {"load_universal": True}
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.load_checkpoint(str(root), tag=tag)
    difference = lab.reference.largest_difference(lab.parameters(engine), saved)
    assert difference.relative < 1e-6, f"ZeRO-{stage}: {difference}"
    return difference.relative
