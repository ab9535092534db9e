"""Where dsfix keeps what it need not make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """$DSFIX_CACHE, or dsfix in the user's cache directory. Raises RuntimeError where the user has no home."""
    if os.environ.get("DSFIX_CACHE"):
        return Path(os.environ["DSFIX_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsfix"
