"""Empty parameter group, e.g. with LoRA: the scheduler fails, or gives groups each other's learning rates.

Why: DeepSpeed removes groups without parameters from the optimizer; a scheduler created before still has a rate for
    each. Since torch 2.10 its step fails: zip() argument 2 is longer than argument 1. Before, and with DeepSpeed's own
    schedulers, rates are assigned by position, silently: every group after an empty one trains at another group's rate.
    With LoRA the group without weight decay (biases, norms) is empty in the Trainer before transformers 5.1,
    LLaMA-Factory, ms-swift, OpenRLHF, DeepSpeed-Chat and loops with accelerate.
How: schedulers get a proxy of the optimizer whose `param_groups` contains the empty groups in their places. Schedulers
    not passed to DeepSpeed are searched among the objects that refer to the optimizer, once, and only if a group is
    removed. Not fixed: a scheduler that is not given to DeepSpeed if gc.freeze() was called between its creation and
    the engine's.
Changes: the learning rates equal plain PyTorch's, also when a job resumes from a checkpoint written without the patch:
    the scheduler's state has the same form. The scheduler's `get_last_lr()` includes the empty groups' rates, as in
    plain PyTorch; the engine's `get_lr()` does not. `scheduler.optimizer == optimizer` holds, `is` does not.
Workaround: Scripts leave out empty groups when they create the optimizer, as transformers does since 5.1.
    You can keep it.
"""

from __future__ import annotations

import copy
import gc
import sys
import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_REMOVED = "_dsfix_removed"  # of an optimizer that was pickled with its scheduler: the empty groups


class _AllGroups:
    """An optimizer whose `param_groups` includes the empty groups that DeepSpeed removes."""

    def __init__(self, optimizer: Any, empty: list[tuple[int, Any]]) -> None:
        self.__dict__.update(_dsfix_optimizer=optimizer, _dsfix_empty=empty)

    @property
    def param_groups(self) -> list[Any]:
        groups = list(self._dsfix_optimizer.param_groups)
        for index, group in self._dsfix_empty:
            groups.insert(index, group)
        return groups

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance
        return type(self._dsfix_optimizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_dsfix_optimizer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dsfix_optimizer, name, value)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._dsfix_optimizer

    def __hash__(self) -> int:
        return hash(self._dsfix_optimizer)

    def __repr__(self) -> str:
        return repr(self._dsfix_optimizer)

    def __copy__(self) -> _AllGroups:
        return _AllGroups(copy.copy(self._dsfix_optimizer), self._dsfix_empty)

    def __deepcopy__(self, memo: dict[int, Any]) -> _AllGroups:
        return _AllGroups(copy.deepcopy(self._dsfix_optimizer, memo), copy.deepcopy(self._dsfix_empty, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:  # read without dsfix it is the very optimizer, with a note on it
        import operator

        return operator.getitem, ((self._dsfix_optimizer, _Note(self._dsfix_optimizer, self._dsfix_empty)), 0)


class _Note:
    """In a pickle: sets the note, which the optimizer's own `__setstate__` may not take."""

    def __init__(self, *note: Any) -> None:
        self._note = note

    def __reduce__(self) -> Any:
        import operator

        optimizer, empty = self._note
        return operator.methodcaller("__setattr__", _REMOVED, empty), (optimizer,)


def show_all_groups(optimizer: Any, scheduler: Any) -> Any:
    """Let `scheduler` and all other schedulers of `optimizer` keep seeing its present groups; returns the optimizer."""
    if type(optimizer) is _AllGroups:  # a scheduler's, from an engine before this one
        return optimizer._dsfix_optimizer
    removed = optimizer.__dict__.pop(_REMOVED, [])
    empty = [(index, group) for index, group in enumerate(optimizer.param_groups) if len(group["params"]) == 0]
    empty = empty or removed
    if not empty:
        return optimizer
    holders = gc.get_referrers(optimizer)  # objects, or their dictionaries
    holders += gc.get_referrers(*(holder for holder in holders if type(holder) is dict))
    shown = _AllGroups(optimizer, empty)
    for holder in [scheduler, *holders]:
        attributes = getattr(holder, "__dict__", {})
        if attributes.get("optimizer") is optimizer and (holder is scheduler or _is_scheduler(holder)):
            holder.optimizer = shown
            if _fails(holder):
                took_effect(
                    __name__, "the scheduler kept an empty parameter group (unpatched: its step fails in zip())"
                )
            if _moves(holder, {index for index, _ in empty}):
                took_effect(__name__, "groups after an empty one kept their own learning rates")
    return optimizer


def _fails(scheduler: Any) -> bool:
    """Whether its step goes through as many groups as it has rates, as torch's since 2.10."""
    kind = getattr(sys.modules.get("torch.optim.lr_scheduler"), "LRScheduler", None)
    return hasattr(kind, "_update_lr") and getattr(type(scheduler), "step", None) is getattr(kind, "step", None)


def _moves(scheduler: Any, empty: set[int]) -> bool:
    """Whether a group's rate, taken by its position among those that are not empty, is another group's."""
    for name in ("base_lrs", "min_lrs", "max_lrs", "org_lrs"):
        rates = getattr(scheduler, name, None)
        if isinstance(rates, list) and all(isinstance(each, (int, float)) for each in rates):
            live = [rate for index, rate in enumerate(rates) if index not in empty]
            if live != rates[: len(live)]:
                return True
    return False


def _is_scheduler(holder: Any) -> bool:
    """Whether it steps and has a rate per group, unlike a trainer, a wrapper of the optimizer, or the script."""
    return hasattr(type(holder), "step") and any(
        hasattr(holder, name) for name in ("get_last_lr", "base_lrs", "min_lrs")
    )


_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_CONFIGURE = f"{_ENGINE}._configure_optimizer"
_REMOVE = "basic_optimizer.param_groups[:] = [pg for pg in basic_optimizer.param_groups if len(pg['params']) != 0]"

PATCH = Patch(
    title="Empty parameter group (as with LoRA): the scheduler fails in zip() or mixes up the learning rates",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0"},
    changes=(
        Edit(
            _CONFIGURE,
            before=_REMOVE,
            code="basic_optimizer = show_all_groups(basic_optimizer, self.client_lr_scheduler)",
            uses=(show_all_groups,),
        ),
    ),
    symptom=r"lr_scheduler\.py\D+\d+, in _update_lr\n[\s\S]*zip\(\) argument 2 is longer than argument 1",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/827": "introduced in 0.3.13",
        "https://github.com/deepspeedai/DeepSpeedExamples/pull/756": "related: DeepSpeed-Chat with LoRA alone",
        "https://github.com/huggingface/transformers/pull/43692": "reported",
        "https://github.com/huggingface/transformers/pull/43711": "related: worked around in transformers 5.1.0",
        "https://github.com/hiyouga/LlamaFactory/issues/10144": "reported",
        "https://github.com/MakazhanAlpamys/Soup/issues/336": "reported",
        "https://github.com/modelscope/ms-swift/issues/8299": "reported",
        "https://github.com/OpenRLHF/OpenRLHF/issues/1225": "reported",
    },
    present=(
        # no statement next to the removal adapts the schedulers
        Source(
            _CONFIGURE,
            f"""
if client_optimizer is None:
    ...
else:
    ...
{_REMOVE}
log_dist("Removing param_group that has no 'params' in the basic Optimizer", ranks=[0])
self._check_for_duplicates(basic_optimizer)
self.basic_optimizer = basic_optimizer
""",
        ),
        Source(f"{_ENGINE}._take_model_step", "self.lr_scheduler.step(**(lr_kwargs or {}))"),
    ),
)


_RATES = (0.05, 0.2, 0.1)
_STEPS = 4


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    largest_difference = lab.reference.largest_difference
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]

    def groups(model: Any, empty: int) -> list[dict[str, Any]]:
        parts = [list(model.blocks.parameters()), list(model.head.parameters())]
        parts.insert(empty, [])
        return [{"params": part, "lr": rate} for part, rate in zip(parts, _RATES)]

    def create(model: Any, empty: int) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(groups(model, empty), lr=1.0)
        decays = [lambda step, base=base: base**step for base in (0.9, 0.8, 0.7)]
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, decays)

    def plain(empty: int, by_position: bool = False) -> tuple[list[list[float]], dict[str, Any]]:
        model: Any = lab.models.MLP()
        optimizer, scheduler = create(model, empty)
        rates = []
        for step, (inputs, targets) in enumerate(batches):
            live = [group for group in optimizer.param_groups if group["params"]]
            if by_position and step > 0:  # the first step uses the rates that the optimizer was created with
                for group, rate in zip(live, scheduler.get_last_lr()):
                    group["lr"] = rate
            rates.append([group["lr"] for group in live])
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            optimizer.step()
            scheduler.step()
        return rates, {name: p.detach() for name, p in model.named_parameters()}

    largest = 0.0
    # transformers: the last is empty; DeepSpeed-Chat: the first
    for empty, passed in ((2, True), (2, False), (0, True), (0, False)):
        model = lab.models.MLP()
        optimizer, scheduler = create(model, empty)
        options = {"lr_scheduler": scheduler} if passed else {}
        config = {"train_micro_batch_size_per_gpu": len(batches[0][0])}
        engine = lab.initialize(model, config, optimizer=optimizer, **options)
        rates = []
        for inputs, targets in batches:
            rates.append(list(engine.get_lr()))
            outputs = engine(inputs.to(lab.device))
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            try:
                engine.step()
                if not passed:
                    scheduler.step()
            except ValueError as error:
                frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
                if "zip() argument 2 is longer" in str(error) and "_update_lr" in frames:
                    raise BugPresent(f"two groups and an empty one: in the scheduler's step: {error}") from error
                raise
        expected, parameters = plain(empty)
        trained = lab.parameters(engine)
        if rates != expected:
            by_position, wrong = plain(empty, by_position=True)
            if rates == by_position and largest_difference(trained, wrong).relative < 1e-5:
                pairs = ", ".join(f"{rate:.3g} instead of {right:.3g}" for rate, right in zip(rates[1], expected[1]))
                raise BugPresent(f"behind an empty group, step 2 uses the rates {pairs}")
        assert rates == expected, f"expected the rates {expected}, got {rates}"
        largest = max(largest, largest_difference(trained, parameters).relative)
        assert largest < 1e-5, largest_difference(trained, parameters)
    return f"with an empty group, {_STEPS} steps have plain PyTorch's rates, and its parameters within {largest:.1e}"
