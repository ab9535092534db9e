"""What all patches together add to a step of common jobs: a ratio of CPU time per setting.

    python bench/steps.py [--release X] [--rounds N] [--parameters N] [--write]

A round trains each setting without and with the patches, in separate processes, and takes the ratio of rank 0's median
step times. Reports the median and quartiles of the rounds' ratios. With --parameters, the model is one module with that
many small ones, as large models have, and the settings are the stages, with and without offload.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import matrix  # noqa: F401 isort: skip  takes the checkout, whose dsfix/ has no patches, off sys.path again

import page

import dsfix
from dsfix.lab.isolation import isolated_environment
from dsfix.lab.ranks import launch
from matrix.bystanders import space, trials
from matrix.bystanders.trials import ALL, NONE

_HERE = Path(__file__).resolve().parent
_STEPS, _STEPS_OF_MANY = 40, 5
_TIMEOUT = 900.0  # seconds
SETTINGS: tuple[Mapping[str, str], ...] = (
    {},
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"stage": "1", "precision": "bf16", "accumulation": "2"},
    {"stage": "1", "precision": "bf16, fp32 accumulation"},
    {"stage": "2", "precision": "fp16", "overlap_comm": "true"},
    {"stage": "2", "offload": "optimizer", "precision": "bf16", "clipping": "on"},
    {"stage": "3", "precision": "bf16", "partitioning": "all"},
    {"stage": "3", "offload": "optimizer", "precision": "bf16", "clipping": "on"},
)
OF_MANY = tuple(
    {"ranks": "1", "stage": stage, "offload": offload}
    for stage, offload in zip("012323", ["none"] * 4 + ["optimizer"] * 2)
)


def seconds(every: trials.Trials, variant: str, setting: space.Setting, parameters: int) -> float:
    """The median CPU time of a step of rank 0."""
    with tempfile.TemporaryDirectory(prefix="dsfix-steps-") as name:
        path = os.pathsep.join((str(every.path), str(_HERE)))
        steps = str(_STEPS_OF_MANY if parameters else _STEPS)
        argv = [*every.server(variant).command("steps_rank"), json.dumps(setting), steps, str(parameters), name]
        environment = {**isolated_environment(Path(name)), "PYTHONPATH": path}
        ended = launch(argv, ranks=int(setting["ranks"]), timeout=_TIMEOUT, env=environment, cwd=name)
        written = Path(name, "0.json")
        if not written.is_file():
            why = "".join(ended[0].stderr.strip().splitlines()[-1:])
            sys.exit(f"steps: {variant}, {space.differing(setting)}: {why}")
        return float(statistics.median(json.loads(written.read_text(encoding="utf-8"))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="0.18.9")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="also write the section of docs/overhead.md")
    options = parser.parse_args()
    settings = [{**space.plain(), **each} for each in (OF_MANY if options.parameters else SETTINGS)]
    ratios: list[list[float]] = [[] for _ in settings]
    with trials.Trials(options.release, marks=None) as every:
        for number in range(options.rounds):
            for setting, found in zip(settings, ratios):
                turns = (NONE, ALL) if number % 2 else (ALL, NONE)
                taken = {variant: seconds(every, variant, setting, options.parameters) for variant in turns}
                found.append(taken[ALL] / taken[NONE])
    chosen = f" --parameters {options.parameters}" if options.parameters else ""
    jobs = "a module with many parameters" if options.parameters else "common settings"
    lines = [
        f"`python -m tox run -e bench-steps -- --rounds {options.rounds}{chosen}`, {date.today()}: "
        f"dsfix {dsfix.__version__}, deepspeed {options.release}, {os.cpu_count()} cores.\n",
        f"CPU time per step on rank 0 with all patches that apply, relative to no patches, on {jobs}: median and",
        "quartiles of the rounds. If the quartiles include 1, there is no measurable cost.\n",
        "| setting | ratio | quartiles |",
        "| --- | --- | --- |",
    ]
    for setting, found in zip(settings, ratios):
        shown = (
            ", ".join(f"{name} {level}" for name, level in space.differing(setting).items()) or "stage 0, fp32, 2 ranks"
        )
        low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
        lines.append(f"| {shown} | {middle:.3f} | {low:.3f} to {high:.3f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.write:
        page.update("In a training step", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
