"""LLaMA-Factory and ms-swift with their own commands: wrong as they are, and with `python -m dsfix run` as without
DeepSpeed.

Each is installed in an environment of its own: `python -m tox run -e frameworks-llamafactory,frameworks-ms-swift`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.lab.ranks import free_port
from tests.processes import ended, without_dsfix

EXAMPLES = Path(__file__).parents[2] / "examples" / "command_lines"
DEEPSPEED = re.compile(r"^deepspeed: .*\n", re.MULTILINE)
TROUBLE = ("conflict", "drifted", "failed")
STEPS = 3
SECONDS = 1200  # of one job; on an idle machine it takes half a minute


@dataclass(frozen=True)
class Case:
    """A command and its file, the patch that it needs, and the outcome without it: the patch's symptom, or by how
    much the norm of the first step's gradient is wrong (the seeds are fixed)."""

    needs: str
    command: tuple[str, ...]
    file: str
    patch: str
    ratio: float | None = None

    def __str__(self):
        return f"{self.file}-{self.patch}"


CASES = [
    Case("llamafactory", ("llamafactory-cli", "train"), "llama_factory.yaml", "zero3_checkpoint_recompute"),
    Case("swift", ("swift", "sft"), "ms_swift_lora.yaml", "zero3_checkpoint_recompute"),
    Case("swift", ("swift", "sft"), "ms_swift.yaml", "zero2_accumulation_drops_microbatches", ratio=0.455),
]


class Job:
    """One run of a case's command in a directory of its own."""

    def __init__(self, case, directory, deepspeed=True, dsfix=False):
        self.saved, self.reports = directory / "out" / f"checkpoint-{STEPS}", directory / "reports"
        if not deepspeed:
            file = directory / case.file
            text, lines = DEEPSPEED.subn("", file.read_text(encoding="utf-8"))
            assert lines == 1
            file.write_text(text, encoding="utf-8")
        variables = {"DSFIX_REPORT": str(self.reports)} if dsfix else {}
        prefix = [sys.executable, "-m", "dsfix", "run"] if dsfix else []
        done = run(directory, *prefix, *case.command, case.file, **variables)
        self.status, self.said = done.returncode, done.stdout

    def trained(self):
        """(gradient norm, loss) of each step."""
        assert self.status == 0, self.said[-8000:]
        state = json.loads(self.saved.joinpath("trainer_state.json").read_text(encoding="utf-8"))
        results = [(each["grad_norm"], each["loss"]) for each in state["log_history"]]
        assert len(results) == STEPS
        return results

    def weights(self):
        """What the framework saved after the last step."""
        from safetensors.torch import load_file

        (file,) = self.saved.glob("*.safetensors")
        return load_file(file)

    def outcomes(self):
        """(patch, outcome) in any process of the job."""
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in self.reports.glob("*.json")]
        return {(patch["id"], patch["outcome"]) for report in reports for patch in report["patches"]}


def run(directory, *command, **variables):
    """A command on the CPU of one machine, as one rank below torchrun: both frameworks use DeepSpeed only there."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    cpu = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    one = {"FORCE_TORCHRUN": "1", "LOCAL_SIZE": "1", "MASTER_PORT": str(free_port()), "NPROC_PER_NODE": "1"}
    env = without_dsfix(**{"PATH": path, "HF_HUB_OFFLINE": "1", **cpu, **one, **variables})
    pipes = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return ended(command, directory, env, timeout=SECONDS, **pipes)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The examples, with the model and the data that they read."""
    directory = tmp_path_factory.mktemp("command_lines") / "files"
    shutil.copytree(EXAMPLES, directory)
    done = run(directory, sys.executable, "tiny_qwen2.py")
    assert done.returncode == 0, done.stdout
    return directory


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_trains_as_without_deepspeed_and_needs_the_patch_for_it(case, applies, request, tmp_path):
    if find_spec(case.needs) is None or not applies(case.patch):
        pytest.skip(f"{case.needs} is not installed, or {case.patch} is for another release")
    files = request.getfixturevalue("files")

    def job(name, **how):
        return Job(case, Path(shutil.copytree(files, tmp_path / name)), **how)

    plain = job("plain", deepspeed=False)
    reference, expected_weights = plain.trained(), plain.weights()

    below_run = job("below-run", dsfix=True)
    for seen, expected in zip(below_run.trained(), reference):
        assert seen == pytest.approx(expected, rel=1e-4)
    weights = below_run.weights()
    assert sorted(weights) == sorted(expected_weights)
    for name, weight in weights.items():
        assert (weight - expected_weights[name]).norm() <= 1e-3 * expected_weights[name].norm(), name
    outcomes = below_run.outcomes()
    assert (case.patch, "applied") in outcomes
    assert [
        outcome for outcome in outcomes if outcome[1] in TROUBLE
    ] == []  # whatever the framework itself has replaced

    alone = job("alone")
    if case.ratio is None:
        assert alone.status != 0
        assert re.search(catalogue()[case.patch].patch.symptom, alone.said)
    else:
        (norm, _), *_ = alone.trained()
        assert norm == pytest.approx(case.ratio * reference[0][0], rel=0.01)
