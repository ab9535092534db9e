"""proven.txt: digests of the sources to which the source proof applied each patch, one line per patch."""

from __future__ import annotations

import functools
from pathlib import Path

PATH = Path(__file__).with_name("proven.txt")


def applies(digest: str) -> bool:
    """Whether a patch applies to a source, by the digest of both, `engine.verdict.fingerprint`."""
    return digest in _digests()


@functools.cache
def _digests() -> frozenset[str]:
    try:
        return frozenset(PATH.read_text(encoding="ascii").split())
    except (OSError, ValueError):  # then the source itself is read
        return frozenset()
