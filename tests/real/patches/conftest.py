"""Runs the programs that train with one patch, or without it."""

import json
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.lab.ranks import launch
from dsfix.versions import RangeMatch, gate
from tests.processes import to_fork, without_dsfix

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def applies(has_deepspeed):
    """Skips a test of a patch that is for another release."""

    def check(patch_id):
        fit = gate(catalogue()[patch_id].patch.affects)
        if fit.fit is RangeMatch.OUTSIDE:
            pytest.skip(fit.reason)

    return check


@pytest.fixture
def run(has_deepspeed, tmp_path, forked):
    """Runs one of `programs/` on one rank; returns what it wrote, and its standard error."""

    def run(program, *arguments, **variables):
        environment = without_dsfix(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", **to_fork(**variables))
        command = forked(PROGRAMS / f"{program}.py", tmp_path, *arguments)
        (ended,) = launch(command, ranks=1, timeout=300, env=environment, cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
        return json.loads((tmp_path / "0.json").read_text(encoding="utf-8")), ended.stderr

    return run
