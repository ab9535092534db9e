"""The samples of output in the guides: whole, made when the site is built."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from dsfix.cli.exits import OK, TROUBLE, CommandError


def prints(shown: str, sample: str) -> bool:
    """Whether the sample is of this output: a line "…" stands for any lines, "…" inside one for any text."""
    lines = (
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in sample.splitlines()
    )
    return re.fullmatch("".join(lines), shown.rstrip("\n") + "\n") is not None


def by_command(sample: str, config: str, sources: Path) -> str:
    """The sample, which begins with "$ python …", with all that the command prints; sources: DeepSpeed's."""
    command = sample.partition("\n")[0]
    environment = {**os.environ, "DSFIX_DISABLE": "", "PYTHONPATH": str(sources), "COLUMNS": "80", "RANK": "0"}
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "ds_config.json").write_text(config, encoding="utf-8")
        arguments = [sys.executable, *shlex.split(command)[2:]]
        done = subprocess.run(arguments, env=environment, cwd=directory, capture_output=True, text=True, check=False)
    log = "".join(re.findall(r"^\[dsfix\].*\n", done.stderr, re.M))
    shown = f"{command}\n{log or done.stdout}"
    if done.returncode not in (OK, TROUBLE) or not prints(shown, sample):
        raise CommandError(f"this sample is not what its command prints:\n{sample}\nbut:\n{shown}{done.stderr}")
    return shown


def by_tests(checkout: Path) -> dict[str, str]:
    """Sample -> all of it, of those whose output tests make: of guards, and what else needs several GPUs."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "samples")
        command = [sys.executable, "-m", "pytest", "-q", "-k", "the_sample_in_the_docs", "tests/guards", "tests/engine"]
        environment = {**os.environ, "SAMPLES": str(file)}
        done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CommandError(f"samples cannot be made: {done.stdout}")
        return dict(map(json.loads, file.read_text(encoding="utf-8").splitlines()))
