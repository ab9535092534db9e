"""`--model-args`: what rules need to know of the training around a config, and how it is written down."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Union

Value = Union[str, int, float, bool]

_YES, _NO = {"true", "1", "yes"}, {"false", "0", "no"}


class UnknownArgument(ValueError):
    """A fact that no rule knows, or a value that cannot be meant: one sentence."""


def _flag(text: str) -> bool:
    if text.lower() not in _YES | _NO:
        raise ValueError("true or false is wanted")
    return text.lower() in _YES


def _number(text: str) -> float:
    """7e9, 7B, 500M"""
    scale = {"K": 1e3, "M": 1e6, "B": 1e9}.get(text[-1:].upper(), 1.0)
    value = float(text[:-1] if scale != 1.0 else text) * scale
    if not math.isfinite(value):
        raise ValueError("a number is wanted")
    return value


def _lora(text: str) -> str:
    if text not in ("peft", "own"):
        raise ValueError("peft (a PeftModel) or own (adapters of one's own making) is wanted")
    return text


# name -> how it is read, what it is
KNOWN: dict[str, tuple[Callable[[str], Value], str]] = {
    "per_device_train_batch_size": (int, "of transformers' TrainingArguments"),
    "gradient_accumulation_steps": (int, "the same"),
    "max_grad_norm": (float, "the same"),
    "learning_rate": (float, "the same"),
    "weight_decay": (float, "the same"),
    "adam_beta1": (float, "the same"),
    "adam_beta2": (float, "the same"),
    "adam_epsilon": (float, "the same"),
    "warmup_steps": (int, "the same"),
    "bf16": (_flag, "the same"),
    "fp16": (_flag, "the same"),
    "gradient_checkpointing": (_flag, "the same"),
    "use_reentrant": (_flag, "of gradient_checkpointing_kwargs"),
    "device_map": (str, "of from_pretrained, e.g. auto"),
    "low_cpu_mem_usage": (_flag, "of from_pretrained"),
    "lora": (_lora, "peft or own"),
    "moe": (_flag, "the model has mixture-of-experts layers"),
    "optimizer": (str, "class of the optimizer that the script itself passes to deepspeed.initialize"),
    "parameters": (_number, "of the model, e.g. 7B"),
    "gpu_memory": (float, "GB of one GPU"),
    "save_16bit": (_flag, "16-bit weights are to be saved in training"),
}


def parse(texts: Iterable[str]) -> dict[str, Value]:
    """``["learning_rate=1e-5,bf16=true", "lora=peft"]`` as a dictionary.

    Raises:
        UnknownArgument: one sentence.
    """
    given = {}
    for pair in (pair.strip() for text in texts for pair in text.split(",") if pair.strip()):
        name, equals, value = pair.partition("=")
        if not equals:
            raise UnknownArgument(f"model argument {pair!r} is not of the form KEY=VALUE")
        given[name.strip()] = value.strip()
    return checked(given)


def checked(given: Mapping[str, Any]) -> dict[str, Value]:
    """The arguments with their values read.

    Raises:
        UnknownArgument: one sentence.
    """
    values: dict[str, Value] = {}
    for name, value in given.items():
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f"did you mean {near[0]}" if near else f"known are {', '.join(KNOWN)}"
            raise UnknownArgument(f"no rule asks for the model argument {name!r}; {hint}")
        try:
            values[name] = KNOWN[name][0](str(value))
        except ValueError as error:
            raise UnknownArgument(f"model argument {name}={value}: {error}") from None
    return values
