"""The committed table is consistent, and is written as it is read."""

import re

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dsfix.cli.exits import CommandError
from matrix import table

RELEASES = table.load().releases


def test_every_release_appears_once_and_none_is_a_pre_release():
    versions = [each.version for each in RELEASES]
    assert len(set(versions)) == len(versions)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", each.deepspeed) for each in RELEASES)
    assert versions[0] == Version("0.12.0")
    assert RELEASES[-1].sampled


def test_environments_meet_the_requirements_of_their_releases():
    known = table.load()
    for environment in known.environments.values():
        for each in known.run_in(environment.name):
            for distribution, version in environment.distributions.items():
                assert SpecifierSet(each.requires[distribution]).contains(version), (each.deepspeed, environment.name)


def test_every_environment_is_used():
    known = table.load()
    assert [each.deepspeed for each in known.run_in("torch-2.4.1")][-1] == "0.16.4"
    assert all(known.run_in(name) for name in known.environments)


def test_what_is_written_is_what_is_read(tmp_path):
    copy = tmp_path / "releases.json"
    table.save(table.load(), copy)
    assert copy.read_bytes() == table.PATH.read_bytes()
    assert table.load(copy) == table.load()


@pytest.mark.parametrize(
    "text", ["", "<<<<<<< ours\n", "[]", '{"environments": {}, "releases": []}', '{"releases": [{}]}']
)
def test_an_invalid_table_is_named(tmp_path, text):
    (tmp_path / "releases.json").write_text(text)
    with pytest.raises(CommandError, match=r"releases\.json (is not a valid table|has no environment)"):
        table.load(tmp_path / "releases.json")
