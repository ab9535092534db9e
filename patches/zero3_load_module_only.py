"""ZeRO-3: load_checkpoint(load_module_only=True) loads no weights.

Why: a ZeRO-3 checkpoint has its weights in the files of the optimizer. Through 0.12.6 `load_module_only=True` read
    these files all the same. Since 0.13.0 it does not, and the weights are put together from them only with
    `load_optimizer_states=False`: with `load_module_only=True` alone the model is given the empty placeholders of the
    other file and keeps the weights that it has, except frozen ones and buffers. Nothing fails.
How: the weights are put together as with `load_optimizer_states=False`, which needs host memory for the whole model in
    fp32 on each rank, and the optimizer's files of all ranks. Where some are missing, loading stops: Expected N of
    '*_optim_states.pt'; without the patch it goes on with nothing loaded. Universal checkpoints, and optimizer states on
    NVMe, are not changed.
Changes: jobs that load this way start from the checkpoint's weights. A job that was started without the patch, and its
    checkpoints, started from those that the script initialized or loaded into the model before `deepspeed.initialize`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"

PATCH = Patch(
    title="ZeRO-3: load_checkpoint(load_module_only=True) loads no weights",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.0"},
    changes=(
        Edit(
            f"{_ENGINE}._load_checkpoint",
            replace="not load_optimizer_states",
            code="(not load_optimizer_states or load_module_only and not self.load_universal_checkpoint()\n"
            " and not self.zero_nvme_offload_optimizer())",
        ),
    ),
    symptom="",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/4141": "introduced in 0.13.0",
    },
    fixed_in=None,
    # the optimizer's files are not read
    present=(Source(f"{_ENGINE}.load_checkpoint", "load_optimizer_states and not load_module_only"),),
)


def reproduce(lab: Lab) -> str:
    from dsfix.lab import checkpoints

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(2)]

    def make(seed: int) -> Any:
        model = lab.models.MLP(seed=seed)
        config = {
            "train_micro_batch_size_per_gpu": len(batches[0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": 3},
        }
        return lab.initialize(model, config, model_parameters=model.parameters())

    engine = make(seed=0)
    checkpoints.train(lab, engine, batches[:1])
    saved = lab.parameters(engine)
    engine.save_checkpoint(str(lab.tmp))

    engine = make(seed=1)
    initial = lab.parameters(engine)
    loaded, _ = engine.load_checkpoint(str(lab.tmp), load_module_only=True)
    assert loaded, "no checkpoint was found"
    parameters = lab.parameters(engine)
    if lab.reference.largest_difference(parameters, initial).absolute == 0.0:
        raise BugPresent("after load_checkpoint the weights are the initial ones")
    difference = lab.reference.largest_difference(parameters, saved)
    assert difference.absolute == 0.0, f"loaded weights: {difference}"
    checkpoints.train(lab, engine, batches[1:])
    model = lab.models.MLP()
    model.load_state_dict(saved)
    right = lab.reference.train(model, [batches[1:]], model.loss, "SGD", lr=0.1).parameters
    return lab.reference.compare(lab.parameters(engine), right, after="one step after loading")
