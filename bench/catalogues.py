"""Two copies of the installed dsfix: with its own catalogue, and with one of 500 patches, 60 of which apply."""

from __future__ import annotations

import shutil
from pathlib import Path

import dsfix.patches

SIZE, APPLY = 500, 60
_APPLIES = """
from dsfix.patch import Patch, Provide, Severity

PATCH = Patch(
    title="a made-up patch that applies everywhere", severity=Severity.USABILITY, affects={{"deepspeed": ">=0.12.0"}},
    changes=(Provide("deepspeed.utils", "_made_up_{number}", lambda module: None),), symptom="", upstream={{}},
    fixed_in=None, device="cpu",
)
"""
_LIKE = "muon_param_groups"  # a patch of usual length, which becomes one for no release


def real(directory: Path) -> Path:
    """A directory for PYTHONPATH with the dsfix that is installed."""
    return _laid(directory)


def made_up(directory: Path, applying: int) -> Path:
    """The same with a larger catalogue. applying: how many of the real patches apply to the release."""
    patches = _laid(directory) / "dsfix" / "patches"
    count = sum(1 for path in patches.rglob("*.py") if not path.name.startswith("_"))
    for number in range(max(0, APPLY - applying)):
        (patches / f"z_applies_{number}.py").write_text(_APPLIES.format(number=number), encoding="utf-8")
        count += 1
    text = (patches / "optimizer" / f"{_LIKE}.py").read_text(encoding="utf-8")
    assert ">=0.19.2,<0.19.7" in text
    for number in range(SIZE - count):
        (patches / f"z_other_{number}.py").write_text(text.replace(">=0.19.2,<0.19.7", "<0.1"), encoding="utf-8")
    return directory


def _laid(directory: Path) -> Path:
    package = Path(str(dsfix.__file__)).parent
    shutil.copytree(package, directory / "dsfix", ignore=shutil.ignore_patterns("__pycache__", "patches"))
    [patches] = dsfix.patches.__path__
    shutil.copytree(patches, directory / "dsfix" / "patches", ignore=shutil.ignore_patterns("__pycache__"))
    return directory
