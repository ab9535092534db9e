"""Runs the programs that train with one patch, or without it."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.lab.ranks import launch
from dsfix.versions import Fit, gate
from tests.processes import to_fork, without_dsfix

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def applies():
    """Skips a test of a patch that is for another release."""

    def check(patch_id):
        if find_spec("deepspeed") is None:
            pytest.skip("DeepSpeed is not installed")
        fit = gate(catalogue()[patch_id].patch.affects)
        if fit.fit is Fit.OUTSIDE:
            pytest.skip(fit.reason)

    return check


@pytest.fixture
def run(tmp_path, forked):
    """Runs one of `programs/` on one rank; returns what it wrote, and its standard error."""
    if find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed")

    def run(program, *arguments, **variables):
        kept = {name: os.environ[name] for name in ("DSFIX_CACHE",) if name in os.environ}
        environment = without_dsfix(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **kept, **to_fork(**variables))
        command = forked(PROGRAMS / f"{program}.py", tmp_path, *arguments)
        (ended,) = launch(command, ranks=1, timeout=300, env=environment, cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
        return json.loads((tmp_path / "0.json").read_text(encoding="utf-8")), ended.stderr

    return run
