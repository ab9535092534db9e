"""`import deepspeed` fails in 0.17.5 with torch 2.1 to 2.3: name '_disable_dynamo_if_unsupported' is not defined.

Why: ZenFlow's Adam decorates functions with a helper of torch 2.4. DeepSpeed 0.17.5 has a substitute, but defines it
    only for torch 2.0 and older; with 2.1 to 2.3 the module, and with it `import deepspeed`, fails, whether ZenFlow is
    used or not.
How: provides the helper in torch's module, as a decorator that changes nothing. ZenFlow itself stays unavailable there,
    as in 0.17.6: DeepSpeed asks for other names of torch 2.4, too.
Workaround: None in the script; torch 2.4, or DeepSpeed 0.17.4 or 0.17.6, helps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Patch, Provide, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ADAM = "deepspeed.ops.adam.zenflow_torch_adam"


def _helper(optimizer: Any) -> Callable[..., Any]:
    def _disable_dynamo_if_unsupported(single_tensor_fn: Any = None) -> Callable[[Any], Any]:
        return lambda function: function

    return _disable_dynamo_if_unsupported


PATCH = Patch(
    title="import deepspeed fails with torch 2.1 to 2.3: _disable_dynamo_if_unsupported is not defined",
    severity=Severity.IMPORT,
    affects={"deepspeed": "==0.17.5", "torch": ">=2.1,<2.4.0.dev0"},
    changes=(Provide("torch.optim.optimizer", "_disable_dynamo_if_unsupported", _helper),),
    symptom=r"name '_disable_dynamo_if_unsupported' is not defined",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7544": "fixed in 0.17.6"},
    fixed_in="0.17.6",
    present=(
        Source(
            _ADAM,
            'print(f"[WARNING] ZenFlow disabled: torch internal optimizer symbols could not be imported: {e}")',
        ),
    ),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    try:
        return f"deepspeed {lab.deepspeed.__version__} was imported"
    except NameError as error:
        if error.name != "_disable_dynamo_if_unsupported":
            raise
        raise BugPresent(str(error)) from error
    except AttributeError as error:
        if error.name != "custom_fwd":
            raise
        raise CannotTell("`import deepspeed` 0.18.7 to 0.19.7 needs torch 2.4") from error
