"""The command with the real DeepSpeed, inside a batch system's job."""

import dataclasses
import json
import os
import sys

import pytest

from dsfix.audit.trial import ranks, trial
from dsfix.catalogue import registry
from dsfix.patch import Severity
from dsfix.versions import installed
from tests.processes import ended

pytestmark = pytest.mark.skipif(installed("deepspeed") is None, reason="DeepSpeed is not installed")

# in all releases parameters unused in a step are updated with a stale gradient; the other patch is unrelated
NEEDED, OTHER = "zero3_left_out_gradients", "zero3_scalar_output_hook"
JOB = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "SLURM_PROCID": "3"}


def test_a_bug_is_found_and_the_patch_that_fixes_it_is_named(tmp_path):
    config = tmp_path / "ds.json"
    text = '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3},}'
    config.write_text(text, encoding="utf-8")
    imports = [name for name, each in registry.catalogue().items() if each.patch.severity is Severity.IMPORT]
    variables = {**os.environ, **JOB, "DSFIX_ONLY": ",".join([NEEDED, OTHER, *imports])}
    options = ["--ranks=1", "--steps=3", "--phases=none", "--timeout=600", "--time=1800", "--json"]
    done = ended([sys.executable, "-m", "dsfix", "audit", config, *options], tmp_path, variables, timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)
    assert results["with_dsfix"]["agrees"]
    assert results["with_dsfix"]["comparisons"] > 300
    assert not results["without_dsfix"]["agrees"]
    fixes = {fix["patch"]: fix["without_it"] for fix in results["search"]["fixes"]}
    assert NEEDED in fixes
    assert OTHER not in fixes
    differences = {each["what"]: each for each in fixes[NEEDED]["differences"]}
    # with clipping all other gradients are scaled by a wrong norm, too
    assert differences["gradients"]["names"][0].startswith("sometimes.")
    assert os.listdir(tmp_path) == [config.name]


def test_forked_processes_see_what_fresh_ones_see(plan):
    audited = plan(3, "bf16", steps=4, device="cuda", ranks=2, phases=("resume",))
    with ranks(audited.device) as forked:
        seen, wanted = trial(audited, command=forked), trial(audited)
    assert not wanted.failed
    assert wanted.patches
    assert dataclasses.replace(seen, seconds=wanted.seconds) == wanted
