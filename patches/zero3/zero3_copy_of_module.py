"""ZeRO-3: copy.deepcopy or pickling of the engine's module: can only concatenate tuple (not "list") to tuple.

Why: 0.15.4 makes the dict in which ZeRO-3 keeps a module's parameters picklable, which torch.compile, `copy.deepcopy`
    (an EMA or reference model) and `pickle` need. The method returns a tuple to which it adds a list.
How: adds a tuple, as in 0.16.2.
Workaround: Scripts create a second model and copy the gathered parameters into it. You can keep it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_REDUCE = "deepspeed.runtime.zero.parameter_offload:ZeROOrderedDict.__reduce__"
_RESULT = "(r0, (self._parent_module,)) + {}"

PATCH = Patch(
    title='ZeRO-3, copy.deepcopy or pickling of the module: can only concatenate tuple (not "list") to tuple',
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.4,<0.16.2"},
    changes=(
        Edit(
            _REDUCE,
            replace=_RESULT.format("r2"),
            code=_RESULT.format("tuple(r2)"),
            effect="a module's parameters were copied or pickled (unpatched: TypeError)",
        ),
    ),
    symptom=r'in __reduce__[\s\S]*TypeError: can only concatenate tuple \(not "list"\) to tuple',
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6794": "fixed in 0.16.2",
    },
    fixed_in="0.16.2",
    present=(Source(_REDUCE, "r0, _, *r2 = super().__reduce__()"),),
    fixed=(Source(_REDUCE, _RESULT.format("tuple(r2)")),),
)


def reproduce(lab: Lab) -> str:
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(3)]
    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    from ..checkpoint import _checkpoints as checkpoints

    checkpoints.train(lab, engine, batches[:1])
    kept = lab.parameters(engine)
    try:
        twin = copy.deepcopy(engine.module)
    except TypeError as error:
        if 'tuple (not "list")' in str(error):
            raise BugPresent(f"copy.deepcopy(engine.module): {error}") from error
        if "parent_module" in str(error):
            raise CannotTell(f"deepspeed {lab.deepspeed.__version__}: {error}") from error
        raise
    checkpoints.train(lab, engine, batches[1:])
    names = [name for name, _ in twin.named_parameters()]
    assert names == list(kept), f"the copy has {names}"
    return "the module is copied"
