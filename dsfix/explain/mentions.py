"""The versions that a log names."""

from __future__ import annotations

import re

# by decreasing priority: the running version, environment reports, installed packages
_FORMS = (
    r"(?P<name>DeepSpeed) info: version=(?P<version>[\w.+-]+)",
    r"(?P<name>deepspeed info|torch version) \.{3,} (?P<version>\d[\w.+]*)",
    r"(?P<name>DeepSpeed|PyTorch) version(?: \([^)]*\))?: (?P<version>\d[\w.+]*)",
    r"\b(?P<name>deepspeed|torch)(?:==|-)(?P<version>\d+\.\d+\.\d+(?:[\w.+]*\w)?)",
)
_PATTERNS = [re.compile(form) for form in _FORMS]
_NAMES = {"pytorch": "torch"}

# strings that the forms require; "torch-2.", because "torch-" is part of many names
LITERALS = (
    *("DeepSpeed info: version=", "deepspeed info ...", "DeepSpeed version", "deepspeed==", "deepspeed-0."),
    *("torch version ...", "PyTorch version", "torch==", "torch-2."),
)


class Versions:
    """Collects distribution -> version: the last mention in the form with the highest priority."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def look_at(self, line: str) -> None:
        for weight, pattern in enumerate(_PATTERNS):
            for match in pattern.finditer(line):
                name = match["name"].split()[0].lower()
                name = _NAMES.get(name, name)
                if weight <= self._found.get(name, (weight, ""))[0]:
                    self._found[name] = weight, match["version"]

    def as_dict(self) -> dict[str, str]:
        return {name: version for name, (_, version) in sorted(self._found.items())}
