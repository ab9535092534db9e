"""Launchers on one machine: the job crashes or trains incorrectly, and is correct under `python -m dsfix run`."""

import os
import re
import sys
from pathlib import Path

import pytest

from dsfix.catalogue import registry


@pytest.mark.parametrize("script", ["torchrun.sh", "accelerate.sh"])
def test_two_ranks(start, script, whole):
    if whole:
        unpatched = start("sh", script, with_dsfix=False)
        assert unpatched.status != 0
        assert unpatched.trained_wrong()

    below_run = start("sh", script, with_dsfix=True)
    assert below_run.status == 0
    assert below_run.ranks("right") == 2
    assert len(re.findall(r"\[dsfix\] INFO: .*\d applied, ", below_run.output)) == 1


def test_the_deepspeed_launcher(start, whole):
    """It imports DeepSpeed before any script, and 0.14.2 cannot be imported with this torch."""
    release = Path(sys.prefix, "deepspeed-0.14.2")
    paths = os.pathsep.join(filter(None, [str(release), os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": paths, "LAUNCHER": str(release / "bin" / "deepspeed")}
    if whole:
        unpatched = start("sh", "deepspeed.sh", with_dsfix=False, **variables)
        assert unpatched.status != 0
        symptom = registry.catalogue()["torch_elastic_get_socket_with_port"].patch.symptom
        assert re.search(symptom, unpatched.output)
        assert unpatched.ranks("right") == 0

    below_run = start("sh", "deepspeed.sh", with_dsfix=True, **variables)
    assert below_run.status == 0
    assert below_run.output.count("deepspeed 0.14.2, right: ") == 2


def test_a_worker_that_dies_and_is_restarted(start, whole):
    """torch's elastic agent."""
    if whole:
        unpatched = start("sh", "elastic.sh", with_dsfix=False)
        assert unpatched.status != 0
        assert unpatched.trained_wrong()

    below_run = start("sh", "elastic.sh", with_dsfix=True)
    assert below_run.status == 0
    assert below_run.output.count("rank 1 dies") == 1
    assert below_run.output.count("restarts: 1") == 2
    assert below_run.ranks("right") == 2


def test_spawned_processes_and_their_dataloader_workers(start, whole):
    if whole:
        unpatched = start("python", "processes.py", with_dsfix=False)
        assert unpatched.status == 1
        assert unpatched.trained_wrong()
        assert "patches applied: rank [0] fork [0] spawn [0]" in unpatched.output

    below_run = start("python", "processes.py", with_dsfix=True)
    assert below_run.status == 0
    assert below_run.ranks("right") == 1
    assert re.search(r"patches applied: rank \[([1-9]\d*)\] fork \[\1\] spawn \[\1\]", below_run.output)
