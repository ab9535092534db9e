"""The short form of `python -m tox run -e soak`."""

import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[3] / "bench" / "soak"

pytestmark = pytest.mark.skipif(
    find_spec("deepspeed") is None or metadata.version("deepspeed") != "0.18.9", reason="runs on one release only"
)


@pytest.mark.parametrize(
    ("part", "size"), [("steps", "--steps=300"), ("kills", "--kills=3"), ("threads", "--rounds=2")]
)
def test_soak(part, size):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
    if "DSFIX_CACHE" in os.environ:  # contains the emulated device
        env["DSFIX_CACHE"] = os.environ["DSFIX_CACHE"]
    command = [sys.executable, str(SOAK), "--only", part, size]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
