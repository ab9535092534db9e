"""How dsfix's own patches are found: by index.json, without loading them; in a clone that is not installed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOADED = "import dsfix, sys; print(len(dsfix.report()), sum(name.startswith('dsfix.patches.') for name in sys.modules))"


def test_a_first_process_loads_no_patch_that_cannot_apply(tmp_path):
    """If this fails, run `python -m tox run -e pages`: a patch has changed."""
    from dsfix.catalogue import registry

    record = tmp_path / "deepspeed-0.1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.1\n")
    environment = {**os.environ, "DSFIX_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split() == [str(len(registry.load()[0])), "0"]


@pytest.mark.parametrize("damaged", ["", "{", '{"of": "another"}', json.dumps({"of": "content"}), "[]"])
def test_an_index_of_different_files_is_not_used(tmp_path, monkeypatch, damaged):
    from dsfix.catalogue import registry

    monkeypatch.setattr(registry, "INDEX", tmp_path / "index.json")
    monkeypatch.setattr(registry, "_files_digest", lambda: "content")
    (tmp_path / "index.json").write_text(damaged)
    summaries, broken = registry.index(lambda key, make: make())
    assert (list(summaries), broken) == (list(registry.load()[0]), ())


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
