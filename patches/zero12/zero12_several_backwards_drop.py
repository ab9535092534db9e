"""ZeRO-1 and ZeRO-2: only the last backward pass before a step is used.

Why: since 0.17.6, a backward pass at the accumulation boundary (with `gradient_accumulation_steps` 1: every pass) moves
    the gradient sum to `averaged_gradients`, for `step`, and clears the sum. The next backward pass before the same
    step, whether of a second forward pass or of a second loss of the same one, then fails (0.17.6 to 0.18.2: TypeError
    'NoneType' object is not iterable) or, since 0.18.3, silently replaces the previous gradients: the step uses only
    the last pass. Through 0.17.5, and in PyTorch, the passes add up; in 0.19.8 they do for 16-bit models that
    accumulate gradients in float32.
How: adds what is in `averaged_gradients` to the next pass, without what the script has discarded since (while
    `torch.nn.Parameter.grad` is a property). In doubt, and with Muon, the earlier passes are lost, with one warning.
    Off unless named: a script that leaves out the step after a pass, and discards nothing, trains as it wants because
    of the bug.
Changes: a step is larger by the passes that were lost, also by one after which the script left out the step. A
    checkpoint written without the patch is intact, but was trained on the last pass of each step; Adam's moments catch
    up within about 1 / (1 - beta2) steps.
Workaround: Scripts add the losses up, and call `backward` once. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

from .._shared import tell_of_doubt, unwatch, watch
from ._passes import FILL, RATE, described, is_own, steps_of, train

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ID = "zero12_several_backwards_drop"
_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_EPILOGUE = f"{_OPTIMIZER}.independent_gradient_partition_epilogue"
_MESSAGE = "'NoneType' object is not iterable"

_told: set[str] = set()


def begin(optimizer: Any) -> dict[int, list[Any]]:
    """A backward pass: by group, the gradients of the step's earlier ones, without what was discarded since."""
    state, given = optimizer.__dict__, optimizer.averaged_gradients
    discards = state.pop("_dsfix_discards", None) or unwatch(optimizer)
    earlier = {i: kept for i, kept in state.pop("_dsfix_kept_passes", {}).items() if given.get(i) is kept}
    if not earlier:
        return {}
    given.update(dict.fromkeys(earlier))
    everything = {id(each) for group in optimizer.bit16_groups for each in group}
    gone = everything & (discards.certain | discards.doubtful)
    unknown = not (state["_dsfix_passes_known"] and is_own(optimizer))
    muon = any(getattr(each, "use_muon", False) for group in optimizer.bit16_groups for each in group)
    if unknown or muon:
        if everything - discards.certain:
            _tell("Muon has used it" if muon else "not engine.backward made both, or a checkpoint was loaded")
        return {}
    if gone - discards.certain:
        tell_of_doubt(_ID)
    for i, kept in list(earlier.items()):
        parameters = optimizer.params_in_partition[i]
        if all(id(each) in gone for each in parameters):
            del earlier[i]
        for parameter, gradient in zip(parameters, kept):
            if id(parameter) in gone:
                gradient.zero_()
    return earlier


def add(optimizer: Any, group: int, earlier: dict[int, list[Any]]) -> None:
    """At the accumulation boundary."""
    kept = optimizer.averaged_gradients[group]
    if group in earlier:
        took_effect(__name__, "all backward passes of the step were added; the last one alone would have been used")
        for gradient, before in zip(kept, earlier.pop(group)):
            gradient.add_(before.to(gradient.device))
    optimizer.__dict__.setdefault("_dsfix_kept_passes", {})[group] = kept
    if optimizer.use_grad_accum_attribute and is_own(optimizer):
        for parameter in optimizer.bit16_groups[group]:
            parameter.grad_accum = None  # since 0.18.5 it would be in the next pass, too


def end(optimizer: Any, earlier: dict[int, list[Any]]) -> None:
    state = optimizer.__dict__
    if earlier:  # this pass was not at the boundary
        optimizer.averaged_gradients.update(earlier)
        state.setdefault("_dsfix_kept_passes", {}).update(earlier)
    if state.get("_dsfix_kept_passes"):
        state["_dsfix_passes_known"] = is_own(optimizer)
        watch(optimizer)


def finish(optimizer: Any) -> None:
    """At the step."""
    unwatch(optimizer)
    optimizer.__dict__.pop("_dsfix_kept_passes", None)


def reload(optimizer: Any) -> None:
    """A checkpoint is loaded, which may be to start again from it."""
    if hasattr(optimizer, "_dsfix_passes_known"):
        optimizer._dsfix_passes_known = False


def _tell(why: str) -> None:
    from dsfix.log import rank, warn

    if rank() == 0 and not _told:
        _told.add(why)
        warn(
            f"{_ID}: the first of two backward passes before a step is lost, as without dsfix: {why}. To discard it on "
            "purpose, call engine.zero_grad(); otherwise add the losses and call engine.backward once"
        )


PATCH = Patch(
    title="ZeRO-1/2: only the last backward pass before a step is used",
    severity=Severity.WRONG_RESULT,
    default=False,
    affects={"deepspeed": ">=0.17.6"},
    changes=(
        Edit(_EPILOGUE, before="self.reduce_ipg_grads()", code="earlier = begin(self)", uses=(begin,)),
        Edit(_EPILOGUE, after=FILL, code="add(self, i, earlier)", uses=(add,)),
        Edit(_EPILOGUE, before='see_memory_usage("End ipg_epilogue")', code="end(self, earlier)", uses=(end,)),
        Edit(f"{_OPTIMIZER}.step", before="prev_scale = self.loss_scale", code="finish(self)", uses=(finish,)),
        Edit(
            "deepspeed.runtime.engine:DeepSpeedEngine.load_checkpoint",
            before="if self._optimizer_has_ckpt_event_prologue():\n    ...",
            code="reload(self.optimizer)",
            uses=(reload,),
        ),
    ),
    symptom=rf"independent_gradient_partition_epilogue[\s\S]*{_MESSAGE}",
    upstream={
        "https://github.com/allenai/open-instruct/pull/1498": "related: a workaround",
        "https://github.com/deepspeedai/DeepSpeed/pull/7509": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7665": "related: silent since this change (0.18.3)",
    },
    present=(Source(_EPILOGUE, FILL),),
)


def reproduce(lab: Lab) -> str:
    steps = steps_of(lab)
    passes = len(steps[0])
    model = lab.models.MLP()
    right = lab.reference.train(model, steps, model.loss, "SGD", lr=RATE * passes)  # the sum, not the mean
    model = lab.models.MLP()
    last_only = lab.reference.train(model, [step[-1:] for step in steps], model.loss, "SGD", lr=RATE)

    for stage in (1, 2):
        for forwards in (passes, 1):
            job = described(stage, forwards)
            try:
                parameters = train(lab, steps, stage, forwards)
            except TypeError as error:
                passed = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
                if _MESSAGE in str(error) and "independent_gradient_partition_epilogue" in passed:
                    raise BugPresent(f"{job}: TypeError: {error}") from error
                raise
            lab.reference.compare(
                parameters,
                right.parameters,
                {"those of each step's last pass alone": last_only.parameters},
                after=f"{job}:",
            )
    return f"after {len(steps)} steps of {passes} backward passes the parameters of ZeRO-1 and ZeRO-2 match PyTorch's"
