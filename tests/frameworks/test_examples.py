"""The examples that use a framework: wrong without dsfix, and with it as the same script without DeepSpeed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue

EXAMPLES = Path(__file__).parents[2] / "examples"
FIRST_LINE = re.compile(r"^import dsfix\b.*\n", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A script, the patch that it needs, and what becomes of it without: its patch's symptom, or by how much the norm
    of the first step's gradient is wrong (the seeds are fixed)."""

    script: str
    patch: str
    needs: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    ratio: float | None = None

    def __str__(self):
        return "-".join((self.script, self.patch))


CASES = [
    Case("trainer_lora_zero3", "zero3_checkpoint_recompute", ("transformers", "peft")),
    Case("accelerate_loop", "dict_output_double_scaling", ("transformers", "accelerate"), ratio=1 / 4),
    Case("accelerate_lora", "empty_group_scheduler", ("transformers", "accelerate", "peft")),
    Case("trl_sft", "zero2_offload_accumulation_drops", ("trl", "datasets"), ratio=0.713),
    Case("trl_sft", "zero2_accumulation_drops_microbatches", ("trl", "datasets"), ("--no-offload",), ratio=0.515),
]


def norms_and_losses(done):
    """(gradient norm, loss) of each step."""
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found = re.findall(r"^loss (\S+) grad_norm (\S+)$", done.stdout, re.MULTILINE)
    assert len(found) == 3, done.stdout[-2000:]
    return [(float(norm), float(loss)) for loss, norm in found]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_trains_as_without_deepspeed_and_needs_the_patch_for_it(case, run, applies, tmp_path):
    if not applies(case.patch) or any(find_spec(name) is None for name in case.needs):
        pytest.skip(f"{case.patch} is for another release, or one of {', '.join(case.needs)} is not installed")
    script = EXAMPLES / f"{case.script}.py"
    reference = norms_and_losses(run(script, "--plain", *case.arguments))

    patched = run(script, *case.arguments, DSFIX_REPORT=str(tmp_path / "reports"))
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "reports").iterdir()]
    outcomes = {(each["id"], each["outcome"]) for report in reports for each in report["patches"]}
    assert (case.patch, "applied") in outcomes
    for seen, expected in zip(norms_and_losses(patched), reference):
        assert seen == pytest.approx(expected, rel=1e-5)

    bare = tmp_path / f"{case.script}.py"
    text, lines = FIRST_LINE.subn("", script.read_text(encoding="utf-8"))
    assert lines == 1
    bare.write_text(text, encoding="utf-8")
    # 0.14.2 does not even import without dsfix
    unpatched = run(bare, *case.arguments) if not applies("numpy_bufsize") else run(script, DSFIX_SKIP=case.patch)
    if case.ratio is None:
        assert unpatched.returncode != 0
        assert re.search(catalogue()[case.patch].patch.symptom, unpatched.stderr)
        assert "grad_norm" not in unpatched.stdout
    else:
        first, _ = norms_and_losses(unpatched)[0]
        assert first == pytest.approx(case.ratio * reference[0][0], rel=0.01)
