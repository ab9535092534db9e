"""`--model-args`: what rules need to know about the training around a config."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Union

from ..outcome import did_you_mean

Value = Union[str, int, float, bool]

_YES, _NO = {"true", "1", "yes"}, {"false", "0", "no"}


class UnknownArgument(ValueError):
    """An argument that no rule uses, or an invalid value; the message is one sentence."""


def _flag(text: str) -> bool:
    if text.lower() not in _YES | _NO:
        raise ValueError("must be true or false")
    return text.lower() in _YES


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be an integer") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def _count(text: str) -> float:
    """Parses 7e9, 7B or 500M."""
    scale = {"K": 1e3, "M": 1e6, "B": 1e9}.get(text[-1:].upper(), 1.0)
    value = _number(text[:-1] if scale != 1.0 else text) * scale
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


def _lora(text: str) -> str:
    if text not in ("peft", "own"):
        raise ValueError("must be peft (a PeftModel) or own (adapters implemented by the script)")
    return text


_TRAINING = "as in transformers' TrainingArguments"
# name -> parser, description
KNOWN: dict[str, tuple[Callable[[str], Value], str]] = {
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps"), (_integer, _TRAINING)),
    **dict.fromkeys(("max_grad_norm", "learning_rate", "weight_decay"), (_number, _TRAINING)),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_epsilon"), (_number, _TRAINING)),
    "warmup_steps": (_integer, _TRAINING),
    **dict.fromkeys(("bf16", "fp16", "gradient_checkpointing"), (_flag, _TRAINING)),
    "use_reentrant": (_flag, "as in gradient_checkpointing_kwargs"),
    "device_map": (str, "as in from_pretrained, e.g. auto"),
    "lora": (_lora, "peft: a PeftModel; own: adapters implemented by the script"),
    "moe": (_flag, "whether the model has mixture-of-experts layers"),
    "optimizer": (str, "class of the optimizer that the script passes to deepspeed.initialize"),
    "scheduler": (str, "class of the scheduler that the script passes to deepspeed.initialize"),
    "parameters": (_count, "number of model parameters, e.g. 7B"),
    "launched": (_integer, "number of processes that the launcher started, its WORLD_SIZE"),
    "tensor_parallel": (_integer, "number of ranks that share a layer, as in the mpu of deepspeed.initialize"),
    "float8": (_flag, "whether the model has float8 parameters"),
    "fp32_buffers": (_flag, "whether the model names buffers to keep in fp32, as transformers' _keep_in_fp32_modules"),
    "save_16bit": (_flag, "whether the job saves 16-bit weights"),
}


def parse(texts: Iterable[str]) -> dict[str, Value]:
    """Parses ``["learning_rate=1e-5,bf16=true", "lora=peft"]`` into a dictionary. Raises UnknownArgument."""
    parsed = {}
    for pair in (pair.strip() for text in texts for pair in text.split(",") if pair.strip()):
        name, equals, value = pair.partition("=")
        if not equals:
            raise UnknownArgument(f"model argument must be KEY=VALUE, got {pair!r}")
        parsed[name.strip()] = value.strip()
    return checked(parsed)


def checked(given: Mapping[str, Any]) -> dict[str, Value]:
    """Returns the arguments with their values parsed. Raises UnknownArgument."""
    values: dict[str, Value] = {}
    for name, value in given.items():
        if name not in KNOWN:
            hint = did_you_mean(name, KNOWN, f"; known arguments: {', '.join(KNOWN)}")
            raise UnknownArgument(f"unknown model argument {name!r}{hint}")
        try:
            values[name] = KNOWN[name][0](str(value))
        except ValueError as error:
            raise UnknownArgument(f"model argument {name}={value}: {error}") from None
    return values
