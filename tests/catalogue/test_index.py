"""index.json: what a first process knows about the patches without loading them."""

import json
import os
import subprocess
import sys

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
    monkeypatch.setattr(registry, "_content", lambda: "content")
    (tmp_path / "index.json").write_text(damaged)
    summaries, broken = registry.index(lambda key, make: make())
    assert (list(summaries), broken) == (list(registry.load()[0]), ())
