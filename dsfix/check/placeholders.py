"""Placeholders: values that a script is to fill in before DeepSpeed reads the config, as in a template."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .keys import Key
from .reading import Reading, walk

Path = tuple[str, ...]

COMMENTS = ("_", "//", "#", "$", "comment")  # how keys begin that are meant for people
_MARKED = re.compile(
    r"""
    \$\{[^{}]+\} | \$\([^()]+\) | ^\$[A-Za-z_]\w*$  # shell
    | \{\{.*\}\} | \{%.*%\}                           # Jinja
    | %\(\w+\)[sdif]                                  # Python
    | ^\{[A-Za-z_]\w*\}$
    | ^<[^<>]+>$
    | ^@\w+@$ | ^__[A-Za-z]\w*__$
    | ^(?:\.\.\.|…)$
    | ^(?i:your)[_\- ]
    | ^(?:/?path/to|/your)\b
    | ^(?i:todo|fixme|tbd|change[_\- ]?me|replace[_\- ]?me|fill[_\- ]?(?:me|in)|placeholder)\b
    | ^X{3,}$
    """,
    re.VERBOSE,
)
_NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")  # ZERO_STAGE
_BARE = re.compile(r"[A-Z][A-Z0-9_]*,?")  # hjson takes the rest of the line for the value, with its comma
_VALUES = {"TRUE", "FALSE", "NONE", "NULL"}
_TEXTS = {"wandb", "tensorboard", "csv_monitor", "comet", "nvme_path"}  # blocks and keys that take any text
# top-level keys, and those of blocks without a config model, that take no text
_TOP = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("gradient_predivide_factor", "steps_per_print", "prescale_gradients", "wall_clock_breakdown"),
}
_LEAVES = {("fp16", "enabled"), ("bf16", "enabled"), ("bfloat16", "enabled"), ("zero_optimization", "stage")}
_FREE = (("optimizer", "params"), ("scheduler", "params"))


def find(reading: Reading, keys: Key) -> dict[Path, str]:
    """Returns the keys whose values are placeholders, with the placeholders; no keys that the release does not read."""
    placeholders = {}
    for path, value in walk(reading.content):
        if not _may_be_read(path, keys) or path[-1].startswith(COMMENTS):
            continue
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and _is_placeholder(text, path, reading.plain_json, keys):
                placeholders[path] = text.rstrip(",")
                break
    return placeholders


def _may_be_read(path: Path, keys: Key) -> bool:
    """Whether the release reads the key, or may read it: not all keys of all blocks are known."""
    above = keys.find(*path[:-1])
    if above is not None and above.closed:
        return path[-1] in above.below
    return path[0] in keys.below


def searched(content: dict[str, Any], keys: Key) -> set[Path]:
    """Returns the keys with lists of values that DeepSpeed's autotuning tries one by one."""
    block = content.get("autotuning")
    if not isinstance(block, dict) or block.get("enabled") is not True:
        return set()
    return {path for path, value in walk(content) if isinstance(value, list) and not _takes_list(path, keys)}


def _takes_list(path: Path, keys: Key) -> bool:
    key = keys.find(*path)
    return path not in _LEAVES and (len(path) > 1 or path[0] not in _TOP) and (key is None or not key.kind)


def takes_text(path: Path, keys: Key) -> bool:
    """Whether DeepSpeed may accept any text there."""
    if path in _LEAVES or path[:-1] in _FREE or (len(path) == 1 and path[0] in _TOP):
        return False
    key = keys.find(*path)
    return key is None or not (key.kind or key.below)


def _is_placeholder(text: str, path: Path, plain_json: bool, keys: Key) -> bool:
    stripped = text.strip()
    if _MARKED.search(stripped.rstrip(",")):
        return True
    if stripped.rstrip(",") in _VALUES or _TEXTS & set(path):
        return False
    if not plain_json and _BARE.fullmatch(stripped) and (stripped.endswith(",") or not takes_text(path, keys)):
        return True
    return _NAME.fullmatch(stripped) is not None and not takes_text(path, keys)


def filled(content: dict[str, Any], paths: Iterable[Path], value: Any) -> dict[str, Any]:
    copy = dict(content)
    for path in paths:
        block = copy
        for name in path[:-1]:
            block[name] = dict(block[name])
            block = block[name]
        block[path[-1]] = value
    return copy
