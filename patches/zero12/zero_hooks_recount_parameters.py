"""ZeRO-1 to 3: each gradient hook counts the model's parameters again; steps become slower.

Why: 0.18.5 and 0.18.6 count the parameters of the running backward pass in the hook of each of its parameters, to know
    how many hooks are still to come. With n parameter tensors a backward pass makes n counts of n parameters each: the
    more of them a model has, the slower its steps. It is CPU time between the kernels; the results are correct, and
    there is no message.
How: as in 0.18.7, only the first hook of a backward pass counts, and the first one after that pass has ended within
    the same step (reentrant checkpointing). What a backward pass inside the forward pass has counted
    (TiledFusedLogitsLoss) is dropped when the job's own begins.
Workaround: None in the script; DeepSpeed 0.18.4 or 0.18.7 helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_STATE = "deepspeed.runtime.base_optimizer:BackwardHookStateManager"
_STAGE_1_AND_2 = "deepspeed.runtime.zero.stage_1_and_2"
_STAGE_3 = "deepspeed.runtime.zero.stage3"
_HOOKS_12 = f"{_STAGE_1_AND_2}:DeepSpeedZeroOptimizer.create_gradient_handling_hooks"
_HOOKS_3 = f"{_STAGE_3}:DeepSpeedZeroOptimizer_Stage3.create_reduce_and_remove_grad_hooks"
_COUNT = "count_used_parameters_in_backward"
_COUNT_12 = f"{_COUNT}(all_params_requiring_grad)"
_COUNT_3 = f"{_COUNT}(non_leaf_params_requiring_grad) + leaf_module_count"


def _once(count: str) -> str:
    return f"{count} if self._backward_hook_state.ds_count_again else self._max_expected_hooks_seen"


PATCH = Patch(
    title="ZeRO: each gradient hook counts all parameters again, steps slow down with the number of parameters",
    severity=Severity.USABILITY,
    affects={"deepspeed": ">=0.18.5,<0.18.7"},
    changes=(
        Edit(
            f"{_STATE}.enter_backward",
            before="self.backward_active_depth += 1",
            code="""
if self.backward_active_depth == 0 and not self.backward_seen_this_step:
    self.hooks_fired_this_backward = self.max_expected_hooks_seen = self.remaining_grad_acc_hooks = 0
""",
        ),
        Edit(
            f"{_STATE}.reenter_backward_if_needed",
            before="if self.remaining_grad_acc_hooks == 0:\n    ...",
            # each hook calls this first
            code="""
ended = self.remaining_grad_acc_hooks == 0 and self.backward_active_depth == 0 and self.backward_seen_this_step
self.ds_count_again = ended or self.hooks_fired_this_backward == 0
""",
            effect=RAN,  # the results are the same
            when="self.hooks_fired_this_backward == 1",  # once a pass, not for each parameter
        ),
        Edit(_HOOKS_12, replace=_COUNT_12, code=_once(_COUNT_12)),
        Edit(_HOOKS_3, replace=_COUNT_3, count=2, code=_once(_COUNT_3)),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7882": "reported",
        "https://github.com/deepspeedai/DeepSpeed/issues/7885": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7780": "introduced in 0.18.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/7886": "fixed in 0.18.7",
    },
    fixed_in="0.18.7",
    fixed=(Source(_HOOKS_12, "self.should_refresh_expected_hook_count()"),),
    config=lambda job: job.stage in (1, 2, 3),
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    model = lab.models.MLP()
    right = lab.reference.train(model, [[batch] for batch in batches], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    number = len(right)
    counts = {}
    for stage in (1, 2, 3):
        counts[stage], parameters = _train(lab, stage, batches)
        seen = lab.reference.compare(parameters, right, after=f"after {_STEPS} steps of each stage")
    text = "; ".join(f"stage {stage}: {numbers}" for stage, numbers in counts.items())
    text = f"counts in {_STEPS} backward passes of {number} parameters: {text}"
    if set(counts.values()) == {(number,) * _STEPS}:
        raise BugPresent(text)
    assert set(counts.values()) <= {(1,) * _STEPS, (0,) * _STEPS}, text  # earlier releases do not count
    return f"{text}; {seen}"


def _train(lab: Lab, stage: int, batches: list[Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """How often each backward pass counted the parameters, and the parameters at the end."""
    import importlib
    from unittest import mock

    torch = lab.torch
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": stage},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    module = importlib.import_module(_STAGE_3 if stage == 3 else _STAGE_1_AND_2)
    counts = []
    for inputs, targets in batches:
        loss = torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device))
        with mock.patch.object(module, _COUNT, mock.Mock(wraps=getattr(module, _COUNT, None)), create=True) as count:
            engine.backward(loss)
        counts.append(count.call_count)
        engine.step()
    return tuple(counts), lab.parameters(engine)
