"""The samples of `list`, `find`, `show` and `check` in docs/commands.md are what these commands print in 80 columns."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/commands.md").read_text("utf-8")
SAMPLES = re.findall(r"^\$ python -m dsfix ((?:list|find|show|check) .*)\n([\s\S]*?)^```$", PAGE, re.M)
CONFIG = re.search(r"^```json\n([\s\S]*?)^```$", PAGE, re.M)[1]


def _pattern(sample):
    """A line "…" matches any lines, "…" within a line any text."""
    lines = (
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in sample.splitlines()
    )
    return "".join(lines)


@pytest.mark.parametrize(("command", "sample"), SAMPLES)
def test_a_sample_is_what_the_command_prints(environment, command, sample):
    (environment.directory / "ds_config.json").write_text(CONFIG)
    done = environment.install("0.14.2").dsfix(*command.split(), COLUMNS="80", DSFIX_ONLY="")
    assert re.fullmatch(_pattern(sample), done.stdout), done.stdout


def test_there_are_samples_of_each():
    assert {command.split()[0] for command, _ in SAMPLES} == {"list", "find", "show", "check"}
