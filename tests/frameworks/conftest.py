"""What the tests of frameworks share: scripts run as their users run them, on the machine of the demonstration."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.versions import Fit, gate
from tests.processes import ended, without_dsfix

ROOT = Path(__file__).parents[2]
MACHINE = ROOT / "demo" / "machine"  # a GPU, or the emulated device: the frameworks use DeepSpeed on such only


@pytest.fixture
def run(tmp_path):
    """Runs a script in a fresh process; keywords are more environment variables."""

    def call(script, *arguments, **variables):
        kept = {name: os.environ[name] for name in ("DSFIX_CACHE",) if name in os.environ}
        env = without_dsfix(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **kept, **variables)
        env["PYTHONPATH"] = os.pathsep.join([str(MACHINE), *filter(None, [env.get("PYTHONPATH")])])
        return ended([sys.executable, script, *arguments], tmp_path, env)

    return call


@pytest.fixture
def applies():
    """Whether a patch is for the installed DeepSpeed."""

    def call(patch_id):
        return find_spec("deepspeed") is not None and gate(catalogue()[patch_id].patch.affects).fit is not Fit.OUTSIDE

    return call
