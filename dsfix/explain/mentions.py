"""The versions that a log names."""

from __future__ import annotations

import re
from itertools import product

# of a package's file without what follows it (.tar.gz, .dist-info)
_PACKAGED = (
    r"\d+\.\d+\.\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?"
    r"(?:\+[A-Za-z0-9]+(?:\.(?!tar\b|zip\b|whl\b|dist\b|egg\b)\w+)*)?"
)
_NAME = r"(?P<name>[Dd]eep[Ss]peed|torch|PyTorch)"
_VERSION = rf"(?P<version>{_PACKAGED})(?!\w)(?!\+| (?:or|and) (?:later|newer|above|higher|up))"
# by decreasing priority: the running version, environment reports, installed packages, sentences
_FORMS = (
    r"(?P<name>DeepSpeed) info: version=(?P<version>[\w.+-]+)",
    r"(?P<name>deepspeed info|torch version) \.{3,} (?P<version>\d[\w.+]*)",
    r"(?P<name>DeepSpeed|PyTorch) version(?: \([^)]*\))?: (?P<version>\d[\w.+]*)",
    rf"\b{_NAME}(?:==|-v?){_VERSION}",
    rf"\b{_NAME} v?{_VERSION}",
)
_PATTERNS = [re.compile(form) for form in _FORMS]
# before a version in a sentence
_ANOTHER = re.compile(r"\b(?:requires?|needs?|than|since|before|after|until|below|to) $")
_NAMES = {"pytorch": "torch"}

# strings that the forms require; "torch-2.", because "torch-" is part of many names
LITERALS = (
    *("DeepSpeed info: version=", "deepspeed info ...", "DeepSpeed version", "deepspeed==", "deepspeed-0."),
    *("DeepSpeed-0.", "DeepSpeed v0.", "deepspeed v0.", "Deepspeed v0."),
    *("DeepSpeed 0.", "deepspeed 0.", "Deepspeed 0."),
    *("torch version ...", "PyTorch version", "torch==", "torch-2.", "torch 2.", "PyTorch 2.", "torch v2."),
)


_MOST = 8  # versions of one distribution


class Versions:
    """Collects distribution -> version: the last mention in the form with the highest priority."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, list[str]]] = {}

    def look_at(self, line: str) -> None:
        for weight, pattern in enumerate(_PATTERNS):
            for match in pattern.finditer(line):
                if _ANOTHER.search(line, 0, match.start()):
                    continue
                name = match["name"].split()[0].lower()
                name = _NAMES.get(name, name)
                before, versions = self._found.get(name, (weight, []))
                if weight < before:
                    versions = []
                if weight <= before:
                    others = [version for version in versions if version != match["version"]]
                    self._found[name] = weight, [*others, match["version"]][-_MOST:]

    def as_dict(self) -> dict[str, str]:
        return {name: versions[-1] for name, (_, versions) in sorted(self._found.items())}

    def alternatives(self) -> list[dict[str, str]]:
        """Returns the same for each combination of the versions that this form names: several jobs, or an upgrade."""
        names = sorted(self._found)
        return [dict(zip(names, each)) for each in product(*(reversed(self._found[name][1]) for name in names))]

    def described(self) -> str:
        return ", ".join(f"{name} {' and '.join(versions)}" for name, (_, versions) in sorted(self._found.items()))
