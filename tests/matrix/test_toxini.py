"""tox.ini is up to date with the table."""

import argparse

from matrix import table, toxini


def test_tox_ini_is_up_to_date():
    text = toxini.PATH.read_text(encoding="utf-8")
    assert toxini.updated(text, table.load()) == text, "python -m matrix tox"


def test_a_stale_part_is_rewritten(tmp_path, monkeypatch):
    stale = tmp_path / "tox.ini"
    text = toxini.PATH.read_text(encoding="utf-8")
    newest = table.load().releases[-1].deepspeed
    assert newest in text
    stale.write_text(text.replace(f"ds-{newest}\n", "ds-0.0.1\n", 1), encoding="utf-8")  # one of the sampled releases
    monkeypatch.setattr(toxini, "PATH", stale)
    assert toxini.run(argparse.Namespace()) == 0
    assert stale.read_text(encoding="utf-8") == text
