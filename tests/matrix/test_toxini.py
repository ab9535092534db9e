"""tox.ini is up to date with the table."""

import argparse
import configparser
import dataclasses

import pytest
from packaging.version import Version

from dsfix.cli.exits import Complaint
from matrix import table, toxini


def test_tox_ini_is_up_to_date():
    text = toxini.PATH.read_text(encoding="utf-8")
    assert toxini.updated(text, table.load()) == text, "python -m matrix tox"


def test_versions_follow_the_table():
    current = table.load()
    first = next(iter(current.environments.values()))
    environments = {**current.environments, first.name: dataclasses.replace(first, distributions={"torch": "9.8.7"})}
    text = toxini.updated(toxini.PATH.read_text(encoding="utf-8"), table.Table(environments, current.releases))
    written = configparser.ConfigParser(interpolation=None)
    written.read_string(text)
    assert written["releases"]["torch"] == "9.8.7"
    assert "numpy" not in written["releases"]
    assert "2.3.1: torch==2.3.1" in text


def test_ranges_skip_missing_versions():
    versions = map(Version, ("0.12.0", "0.12.1", "0.12.2", "0.12.4", "0.13.7", "0.14.8", "0.14.10", "1.0.0", "1.0.1"))
    assert list(toxini.ranges("ds-", versions)) == ["ds-0.12.{0-2,4}", "ds-0.13.7", "ds-0.14.{8,10}", "ds-1.0.{0-1}"]


def test_a_stale_part_is_rewritten(tmp_path, monkeypatch):
    stale = tmp_path / "tox.ini"
    text = toxini.PATH.read_text(encoding="utf-8")
    newest = table.load().releases[-1].deepspeed
    assert newest in text
    stale.write_text(text.replace(f"ds-{newest}\n", "ds-0.0.1\n", 1), encoding="utf-8")  # one of the sampled releases
    monkeypatch.setattr(toxini, "PATH", stale)
    assert toxini.run(argparse.Namespace()) == 0
    assert stale.read_text(encoding="utf-8") == text


def test_a_missing_part_is_a_complaint():
    with pytest.raises(Complaint, match="sampled releases"):
        toxini.updated("[tox]\n", table.load())
