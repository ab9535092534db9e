"""The keys that a DeepSpeed release reads from its config, as a tree; keys.json has those of all releases."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

TABLE = Path(__file__).with_name("keys.json")
INFERENCE = "init_inference()"  # above the keys of its config in the table
_CUTOFF = 0.8  # of difflib: gradient_cliping matches gradient_clipping, comms_config does not match comms_logger
_WORD = 0.6  # the same, of each word: params matches parameters, min does not match max


@dataclass
class Key:
    """One key, and the keys below it.

    closed: a config model of DeepSpeed, which rejects unknown keys.
    kind: "int", "float" or "bool" if the config model declares it.
    removed: the release rejects this key as removed.
    """

    closed: bool = False
    kind: str = ""
    removed: bool = False
    below: dict[str, Key] = field(default_factory=dict)

    def at(self, *path: str) -> Key:
        """Returns the key at that path below this one; creates it if missing."""
        key = self
        for name in path:
            key = key.below.setdefault(name, Key())
        return key

    def find(self, *path: str) -> Key | None:
        key: Key | None = self
        for name in path:
            key = key.below.get(name) if key is not None else None
        return key

    def walk(self, *above: str) -> Iterator[tuple[tuple[str, ...], Key]]:
        for name, key in self.below.items():
            yield (*above, name), key
            yield from key.walk(*above, name)

    @property
    def names(self) -> list[str]:
        return [name for name, key in self.below.items() if not key.removed]


@dataclass
class KnownKeys:
    """What a release reads: its config keys, and the names of its own optimizers and schedulers.

    inference: the keys of the config of `deepspeed.init_inference`.
    """

    keys: Key = field(default_factory=Key)
    optimizers: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    inference: Key = field(default_factory=Key)


def nearest(name: str, known: list[str]) -> str | None:
    """Returns the known key that was most likely meant, or None.

    A key may lack words (train_micro_batch_size), but not have a different one (pipe_partition_method).
    """
    folded = {each.lower().replace("-", "_"): each for each in known}
    written = name.lower().replace("-", "_")
    close = difflib.get_close_matches(written, list(folded), n=3, cutoff=_CUTOFF)
    return next(
        (folded[candidate] for candidate in close if _closest_key(written.split("_"), candidate.split("_"))), None
    )


def _closest_key(written: list[str], known: list[str]) -> bool:
    rest = iter(known)
    return "".join(written) == "".join(known) or all(any(_similarity(word, each) for each in rest) for word in written)


def _similarity(one: str, other: str) -> bool:
    digits = re.sub(r"\D", "", one)
    same = digits and digits == re.sub(r"\D", "", other)  # fp16, 16bit
    return bool(same) or other.startswith(one) or difflib.SequenceMatcher(None, one, other).ratio() >= _WORD


def flatten(known: KnownKeys) -> dict[str, str]:
    """Returns one release's part of the table: path -> what is known about the key."""
    flat = {}
    for path, key in (*known.keys.walk(), *known.inference.walk(INFERENCE)):
        flat["/".join(path)] = "removed" if key.removed else key.kind or ("closed" if key.closed else "")
    flat.update({f"optimizer/type={name}": "" for name in known.optimizers})
    flat.update({f"scheduler/type={name}": "" for name in known.schedulers})
    return flat


@functools.cache
def table() -> dict[str, Any]:
    """Returns keys.json: `releases`: [first, last]; `keys`: path -> [[first, last, what]], last null in the newest."""
    loaded: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return loaded


def of_release(version: Version) -> KnownKeys:
    """Returns what the table knows about a release, or about the nearest one in the table."""
    first, last = (Version(text) for text in table()["releases"])
    near = min(max(version, first), last)
    known = KnownKeys()
    optimizers, schedulers = [], []
    for path, spans in table()["keys"].items():
        what = _table_entry(spans, near)
        if what is None:
            continue
        if path.startswith("optimizer/type="):
            optimizers.append(path.partition("=")[2])
        elif path.startswith("scheduler/type="):
            schedulers.append(path.partition("=")[2])
        else:
            above, _, below = path.partition("/")
            key = known.inference.at(*below.split("/")) if above == INFERENCE else known.keys.at(*path.split("/"))
            key.removed = what == "removed"
            key.closed = what == "closed"
            key.kind = what if what in ("int", "float", "bool") else ""
    known.optimizers, known.schedulers = tuple(optimizers), tuple(schedulers)
    known.inference.closed = bool(known.inference.below)
    return known


def _table_entry(spans: list[list[str | None]], version: Version) -> str | None:
    for first, last, what in spans:
        if Version(first or "0") <= version and (last is None or version <= Version(last)):
            return what
    return None


def elsewhere(path: tuple[str, ...]) -> str | None:
    """Returns the releases that read a key, as text; None if there are none."""
    spans = [span for span in table()["keys"].get("/".join(path), ()) if span[2] != "removed"]
    if not spans:
        return None
    return ", ".join(f"{first} to {last}" if last else f"{first} and later" for first, last, _ in spans)
