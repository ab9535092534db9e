"""Keys that the release does not read: ignored at the top and in most blocks, rejected in config models."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Found, Level, Rule
from .. import keys
from ..facts import Facts, Path, name_of
from .precision import LOSS_SCALE

_COMMENTS = ("_", "//", "#", "$", "comment")


def _unknown(facts: Facts) -> Iterator[tuple[Path, keys.Key]]:
    """Every key that is not read, with the block that it stands in; what is below it is not looked at."""
    for path, _ in facts.walk():
        above = facts.known.keys.find(*path[:-1])
        if above is None or path[-1] in above.below or path[-1].startswith(_COMMENTS):
            continue
        if not above.below or (path[0] in ("bf16", "bfloat16") and path[-1] in LOSS_SCALE):
            continue  # nothing is known of the block; a rule of its own
        yield path, above


def _near(path: Path, above: keys.Key) -> str | None:
    return keys.nearest(path[-1], above.names)


def _rejected(facts: Facts) -> Iterator[Found]:
    for path, above in _unknown(facts):
        if above.closed:
            near = _near(path, above)
            hint = f"; did you mean {near}?" if near else _other_release(path)
            yield Found(name_of(path), f"DeepSpeed rejects a key that it does not know here{hint}")


def _misspelled(facts: Facts) -> Iterator[Found]:
    for path, above in _unknown(facts):
        near = _near(path, above)
        if near is not None and not above.closed and keys.elsewhere(path) is None:
            yield Found(name_of(path), f"DeepSpeed reads no such key and says nothing; did you mean {near}?")


def _misplaced(facts: Facts) -> Iterator[Found]:
    for path, above in _unknown(facts):
        if above.closed or _near(path, above) or keys.elsewhere(path):
            continue
        for block in ("zero_optimization", "fp16", "optimizer", "scheduler"):
            there = facts.known.keys.find(block, path[-1])
            if path[:-1] != (block,) and there is not None:
                yield Found(name_of(path), f"DeepSpeed does not read it here but in {block}: ignored")
                break


def _other(facts: Facts) -> Iterator[Found]:
    for path, above in _unknown(facts):
        if not above.closed and keys.elsewhere(path):
            yield Found(name_of(path), f"this release does not read it and says nothing{_other_release(path)}")


def _other_release(path: Path) -> str:
    read = keys.elsewhere(path)
    return f"; DeepSpeed {read} reads it" if read else ""


def _ignored(facts: Facts) -> Iterator[Found]:
    for path, above in _unknown(facts):
        known = _near(path, above) or keys.elsewhere(path)
        if len(path) == 1 and not known and not any(found.where == name_of(path) for found in _misplaced(facts)):
            yield Found(name_of(path), "DeepSpeed reads no such key")


def _removed(facts: Facts) -> Iterator[Found]:
    for path, _ in facts.walk():
        key = facts.known.keys.find(*path)
        if key is not None and key.removed:
            yield Found(name_of(path), f"removed, and rejected whatever its value{_other_release(path)}")


RULES = (
    Rule(
        id="rejected_key",
        level=Level.ERROR,
        find=_rejected,
        remedy="correct or delete it",
        evidence=("run: 0.12.0 to 0.19.8: ValidationError, extra inputs are not permitted",),
    ),
    Rule(
        id="removed_key",
        level=Level.ERROR,
        find=_removed,
        remedy="delete it, also where it is disabled",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/8489", "run: 0.19.7, 0.19.8"),
    ),
    Rule(
        id="misspelled_key",
        level=Level.WARNING,
        find=_misspelled,
        remedy="correct it",
        evidence=("run: 0.12.0 to 0.19.8: accepted, the default is used",),
    ),
    Rule(
        id="misplaced_key",
        level=Level.WARNING,
        find=_misplaced,
        remedy="move it there",
        evidence=("run: 0.12.0 to 0.19.8: accepted, the default is used",),
    ),
    Rule(
        id="key_of_another_release",
        level=Level.WARNING,
        find=_other,
        remedy="delete it, or use a release that reads it",
        evidence=("the source of all releases from 0.12.0 on",),
    ),
    Rule(
        id="unread_key",
        level=Level.NOTE,
        find=_ignored,
        remedy="delete it if nothing else reads it",
        evidence=("run: 0.12.0 to 0.19.8: accepted",),
    ),
)
