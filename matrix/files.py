"""How records are written: JSON with a line for each entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def lines(data: Mapping[str, Any], *tables: str) -> str:
    """JSON of the data with one line for each value; those named `tables` have one for each of their entries."""
    parts = []
    for name, value in data.items():
        text = json.dumps(value)
        if name in tables and isinstance(value, Mapping):
            text = "{\n  " + ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n }"
        elif name in tables:
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
