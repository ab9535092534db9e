"""The samples of `list`, `find`, `show` and `check` in docs/commands.md are what these commands print in 80 columns."""

import re

import pytest

from tests.samples import DOCS, prints

PAGE = (DOCS / "commands.md").read_text("utf-8")
SAMPLES = re.findall(r"^\$ python -m dsfix ((?:list|find|show|check) .*)\n([\s\S]*?)^```$", PAGE, re.M)
CONFIG = re.search(r"^```json\n([\s\S]*?)^```$", PAGE, re.M)[1]


@pytest.mark.parametrize(("command", "sample"), SAMPLES)
def test_a_sample_is_what_the_command_prints(environment, command, sample):
    (environment.directory / "ds_config.json").write_text(CONFIG)
    done = environment.install("0.14.2").dsfix(*command.split(), COLUMNS="80", DSFIX_ONLY="")
    assert prints(done.stdout, sample), done.stdout


def test_there_are_samples_of_each():
    assert {command.split()[0] for command, _ in SAMPLES} == {"list", "find", "show", "check"}
