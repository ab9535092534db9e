"""`python -m dsfix` in a clone that is not installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path):
    for name in ("dsfix", "patches"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def dsfix(directory, *arguments, **options):
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False, **options)


def test_its_patches_are_found(clone):
    shown = dsfix(clone, "-m", "dsfix", "show", "zero3_offload_clip_device")
    assert shown.returncode == 0, shown.stderr
    assert str(clone / "patches" / "offload" / "zero3_offload_clip_device.py") in shown.stdout


def test_an_unrelated_package_named_patches_is_ignored(clone):
    (clone / "patches" / "_template.py").unlink()
    listed = dsfix(clone, "-m", "dsfix", "list")
    assert listed.returncode == 2
    assert "No module named 'dsfix.patches'; reinstall dsfix" in listed.stderr
