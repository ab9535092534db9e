"""bf16 or fp16: the frequencies of rotary embeddings are rounded to half precision.

Why: through 0.19.1 the engine casts the whole model with `module.bfloat16()` or `module.half()`, buffers included. A
    rotary embedding multiplies its buffer `inv_freq` by the position, and the rounding error with it: with bf16 and a
    base of 10000 the phase is off by 0.6 at position 512 and by 10 radians at 8192, with fp16 by 0.1 and 2. The model
    differs from the one in plain PyTorch, where `from_pretrained(..., dtype=torch.bfloat16)` leaves these buffers in
    fp32. Nothing fails.
How: an fp32 buffer named `…inv_freq` stays fp32 in transformers' rotary embeddings (the interface of 4.38 and later),
    if a trial on a copy shows that they return the same dtypes as before. All other buffers are cast, because working
    code relies on it. Not fixed: frequencies of other code, remote code of the Hub included, of modules on the meta
    device or with a `forward` that accelerate has replaced, and those created in half precision.
Changes: the results of models with such embeddings, more so the longer the sequences. A job that resumes from a
    checkpoint written without the patch continues with exact frequencies, as with 0.19.2; its weights were trained with
    rounded ones, so the loss may rise at first.
Workaround: Scripts put `inv_freq` back in fp32 after `deepspeed.initialize`, or keep the frequencies in an attribute
    that is no buffer. You can keep it.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONFIGURE = "deepspeed.runtime.engine:DeepSpeedEngine._configure_distributed_model"
_SUFFIX = "inv_freq"
# of position_ids: [batch, tokens], the same for the time, height and width of each token; [patches, row and column]
_SHAPES = ((1, 2), (3, 1, 2), (2, 2))
_LAST = 1, 1 << 17  # embeddings may compute other frequencies beyond the length that the model was trained with


@contextmanager
def fp32_frequencies(model: Any, half: Any) -> Iterator[None]:
    """Restores, after the model is cast to the dtype `half`, the fp32 frequencies of its rotary embeddings."""
    kept = [(module, names) for module in model.modules() if (names := _frequencies(module, half))]
    yield
    for module, frequencies in kept:
        module._buffers.update(frequencies)
    if any(each.numel() > 1 for _, frequencies in kept for each in frequencies.values()):
        took_effect(__name__, "the frequencies (inv_freq) of %s rotary embeddings stayed fp32", len(kept))


def _frequencies(module: Any, half: Any) -> dict[str, Any]:
    """The module's fp32 frequencies by name; none where something that its caller sees depends on their dtype."""
    import torch

    # other code may read the frequencies elsewhere than in the module; transformers does not
    if type(module).__module__.partition(".")[0] != "transformers":
        return {}
    found = {name: each for name, each in module._buffers.items() if name.endswith(_SUFFIX)}
    found = {name: each for name, each in found.items() if each is not None and each.dtype == torch.float32}
    alone = next(module.children(), None) is None and next(module.parameters(), None) is None
    if not found or not alone or "forward" in module.__dict__:
        return {}
    try:
        if "position_ids" not in inspect.signature(type(module).forward).parameters:
            return {}
        same = _result_dtypes(module, half, found) == _result_dtypes(module, half, {})
    except Exception:  # whatever another interface raises: the cast remains as it is
        return {}
    return found if same else {}


def _result_dtypes(module: Any, half: Any, exact: dict[str, Any]) -> list[Any]:
    """The dtypes of what the module computes for half activations, with all buffers half except `exact`."""
    dtypes = []
    for kind in _kinds_of_layers(module):
        for last in _LAST:
            results = _try(module, half, exact, last, kind)
            dtypes += [each.dtype for each in (results if isinstance(results, (tuple, list)) else [results])]
    return dtypes


def _try(module: Any, half: Any, exact: dict[str, Any], last: int, kind: dict[str, str]) -> Any:
    """What a copy of the module returns for two tokens, the second one at the position `last`.

    On the CPU, because an index error on a GPU would end the process.
    """
    import torch

    twin = copy.copy(module)
    # hooks may lead to the engine of before
    own = {name: each for name, each in vars(module).items() if not name.endswith("_hooks")}
    twin.__dict__.update({name: copy.deepcopy(each) for name, each in own.items()})
    twin.to("cpu", half)
    twin._buffers.update({name: each.detach().to("cpu", copy=True) for name, each in exact.items()})
    activations = torch.zeros(1, 2, 1, dtype=half, device="cpu")
    position_ids = torch.tensor([[0, last]], device="cpu")
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        for shape in _SHAPES:
            try:
                return twin.forward(activations, position_ids=position_ids.expand(shape), **kind)
            except (IndexError, RuntimeError):
                if shape == _SHAPES[-1]:
                    raise


def _kinds_of_layers(module: Any) -> list[dict[str, str]]:
    """The arguments beyond x and position_ids: transformers 5 has `sliding_attention_inv_freq` and the like."""
    prefixes = {name[: -len(_SUFFIX)] for name in module._buffers if name.endswith(_SUFFIX)}
    kinds = {prefix[: -len("original_")] if prefix.endswith("original_") else prefix for prefix in prefixes}
    return [{"layer_type": kind.rstrip("_")} if kind else {} for kind in sorted(kinds)]


PATCH = Patch(
    title="bf16 or fp16: rotary frequencies (inv_freq) are rounded to half precision: wrong at long positions",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.2"},
    changes=tuple(
        Edit(
            _CONFIGURE,
            replace=f"self.module.{cast}()",
            code=f"with fp32_frequencies(self.module, torch.{cast}):\n    self.module.{cast}()",
            uses=(fp32_frequencies,),
        )
        for cast in ("half", "bfloat16")
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/5812": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/8066": "fixed in 0.19.2, for all buffers",
    },
    fixed_in="0.19.2",
    fixed=(Source(_CONFIGURE, "param_dtype, buffer_dtype = self._mixed_precision_dtypes()"),),
)

_STEPS, _LEARNING_RATE, _DISTANCE = 2, 0.5, 3_000


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from .. import _half as half

    steps = [[lab.models.regression_batch(rank=0, step=step, size=8)] for step in range(_STEPS)]
    seen: dict[str, Any] = {}
    right: dict[str, Any] = {}
    wrong: dict[str, Any] = {}
    for section, dtype in ("bf16", torch.bfloat16), ("fp16", torch.float16):
        for found, cast in (right, False), (wrong, True):
            model = _attention(lab, frequencies_cast=cast)
            trained = half.train(model, dtype, steps, functools.partial(torch.optim.SGD, lr=_LEARNING_RATE))
            found.update(_labelled(section, trained))
        model = _attention(lab, frequencies_cast=True)
        config = {
            "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            section: {"enabled": True, **({"initial_scale_power": 8} if section == "fp16" else {})},
            "zero_optimization": {"stage": 1},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for [(inputs, targets)] in steps:
            engine.backward(half.loss(engine, inputs, targets, next(model.parameters())))
            engine.step()
        seen.update(_labelled(section, lab.parameters(engine)))
    return lab.reference.compare(
        seen,
        right,
        {"those of frequencies in half precision": wrong},
        within=0.001,
        after=f"after {_STEPS} steps with tokens {_DISTANCE} positions apart",
    )


def _labelled(section: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {f"{section} {name}": each for name, each in parameters.items()}


def _attention(lab: Lab, frequencies_cast: bool) -> Any:
    """A model with one attention layer, of whose input each row is a token.

    frequencies_cast: whether `model.to(dtype)` casts the frequencies too.
    """
    torch = lab.torch

    class Rotary(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        __module__ = "transformers.models.llama.modeling_llama"  # only transformers' own are kept in fp32

        def __init__(self) -> None:
            super().__init__()
            frequencies = 10_000.0 ** -(torch.arange(8) / 8)
            if frequencies_cast:
                self.register_buffer("inv_freq", frequencies, persistent=False)
            else:
                self.inv_freq = frequencies

        def forward(self, x: Any, position_ids: Any) -> Any:
            angles = position_ids[..., None].float() * self.inv_freq.to(x.device).float()
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    class Attention(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.rotary, self.rest = Rotary(), lab.models.MLP()
            generator = torch.Generator().manual_seed(0)
            self.projection = torch.nn.Parameter(torch.randn(16, 48, generator=generator) / 4)

        def forward(self, x: Any) -> Any:
            cos, sin = self.rotary(x, torch.arange(len(x), device=x.device)[None] * _DISTANCE)
            query, key, value = (x @ self.projection).split(16, dim=1)

            def rotated(each: Any) -> Any:
                left, right = each.chunk(2, dim=1)
                return torch.cat([left * cos[0] - right * sin[0], right * cos[0] + left * sin[0]], dim=1)

            weights = (rotated(query) @ rotated(key).T).float().softmax(dim=1).to(x.dtype)
            return self.rest(x + weights @ value)

    return Attention()
