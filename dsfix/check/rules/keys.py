"""Keys that the release does not read: ignored at the top level and in most blocks, rejected by config models."""

from __future__ import annotations

from collections.abc import Iterator

from ...rules import Match, error, note, warning
from .. import keys
from ..facts import Facts, name_of
from ..placeholders import COMMENTS, Path
from .precision import LOSS_SCALE

# blocks that DeepSpeed also copies or passes on as a whole, so that not all of their keys are known
_PARTLY_KNOWN = ("amp", "compression_training", "curriculum_learning", "data_efficiency", "progressive_layer_drop")
_WHOLLY_KNOWN = ("activation_checkpointing", "aio", "checkpoint", "data_types", "pipeline")
_MANY = 4  # unread keys, of which each has a note
_BLOCKS = ("zero_optimization", "fp16", "optimizer", "scheduler")
_GENERAL = ("enabled", "type", "params", "dtype")  # names used in several blocks: they do not show where they belong


def _unknown(facts: Facts) -> Iterator[tuple[Path, keys.Key]]:
    """Yields each key that is not read, with the block it is in; keys below it are not checked."""
    for path, _ in facts.walk():
        above = facts.known.keys.find(*path[:-1])
        if above is None or path[-1] in above.below or path[-1].startswith(COMMENTS):
            continue
        if len(path) > 1 and path[0] in _PARTLY_KNOWN:
            continue
        if not above.below or (path[0] in ("bf16", "bfloat16") and path[-1] in LOSS_SCALE):
            continue  # the block's keys are unknown, or a different rule reports it
        yield path, above


def _near(path: Path, above: keys.Key) -> str | None:
    return keys.nearest(path[-1], above.names)


@error("correct or remove it", "run: 0.12.0 to 0.19.8: ValidationError, extra inputs are not permitted")
def rejected_key(facts: Facts) -> Iterator[Match]:
    for path, above in _unknown(facts):
        if above.closed:
            near = _near(path, above)
            hint = f"; did you mean {near}?" if near else _at_top_level(facts, path) or _other_release(facts, path)
            yield Match(name_of(path), f"unknown key in this block: DeepSpeed rejects it{hint}")


@warning("correct it", "run: 0.12.0 to 0.19.8: accepted, the default is used")
def misspelled_key(facts: Facts) -> Iterator[Match]:
    for path, above in _unknown(facts):
        near = _near(path, above)
        if near is not None and not above.closed and facts.elsewhere(path) is None:
            yield Match(name_of(path), f"unknown key, silently ignored; did you mean {near}?")


@warning("move it there", "run: 0.12.0 to 0.19.8: accepted, the default is used")
def misplaced_key(facts: Facts) -> Iterator[Match]:
    for path, above in _unknown(facts):
        if above.closed or _near(path, above) or facts.elsewhere(path) or path[-1] in _GENERAL:
            continue
        for block in _BLOCKS:
            if path[:-1] != (block,) and facts.known.keys.find(block, path[-1]) is not None:
                yield Match(name_of(path), f"silently ignored here: DeepSpeed reads it in {block}")
                break


@warning("remove it, or use a release that reads it", "the source of all releases since 0.12.0")
def key_of_another_release(facts: Facts) -> Iterator[Match]:
    for path, above in _unknown(facts):
        if not above.closed and facts.elsewhere(path):
            yield Match(name_of(path), f"silently ignored by this release{_other_release(facts, path)}")


def _at_top_level(facts: Facts, path: Path) -> str:
    is_top_level = facts.known.keys.find(path[-1]) is not None and path[-1] not in _GENERAL
    return f"; {path[-1]} belongs at the config's top level" if is_top_level else ""


def _other_release(facts: Facts, path: Path) -> str:
    releases = facts.elsewhere(path)
    return f"; read by DeepSpeed {releases}" if releases else ""


def _unread_paths(facts: Facts) -> Iterator[Path]:
    for path, above in _unknown(facts):
        known = above.closed or _near(path, above) or facts.elsewhere(path)
        if len(path) > 1 and path[0] not in _WHOLLY_KNOWN:
            continue
        if not known and not any(match.where == name_of(path) for match in misplaced_key.find(facts)):
            yield path


@note("remove it unless something else reads it", "run: 0.12.0 to 0.19.8: accepted")
def unread_key(facts: Facts) -> Iterator[Match]:
    names = list(map(name_of, _unread_paths(facts)))
    if len(names) > _MANY:  # a different program's config that contains DeepSpeed's
        yield Match("", f"DeepSpeed does not read these {len(names)} keys: {', '.join(names)}")
        return
    for name in names:
        yield Match(name, "DeepSpeed does not read this key")


@error("remove it, even if it is disabled", "#8489", "run: 0.19.7, 0.19.8")
def removed_key(facts: Facts) -> Iterator[Match]:
    for path, _ in facts.walk():
        key = facts.known.keys.find(*path)
        if key is not None and key.removed:
            yield Match(name_of(path), f"removed in this release, which rejects any value{_other_release(facts, path)}")
