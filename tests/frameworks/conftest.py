"""What the tests of frameworks share: scripts run as their users run them, on the machine of the demonstration."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Callable

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.versions import Fit, gate

ROOT = Path(__file__).parents[2]
MACHINE = ROOT / "demo" / "machine"  # a GPU, or the emulated device: the frameworks use DeepSpeed on such only

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path):
    """Runs a script in a fresh process; keywords are more environment variables."""

    def call(script, *arguments, **variables):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
        env.update({name: os.environ[name] for name in ("DSFIX_CACHE",) if name in os.environ})
        env.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **variables)
        env["PYTHONPATH"] = os.pathsep.join([str(MACHINE), *filter(None, [env.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return call


@pytest.fixture
def applies():
    """Whether a patch is for the installed DeepSpeed."""

    def call(patch_id):
        return find_spec("deepspeed") is not None and gate(catalogue()[patch_id].patch.affects).fit is not Fit.OUTSIDE

    return call
