"""What each patch adds to a step of common jobs, as a ratio of CPU time.

    python bench/steps_of_patches.py [--patch ID [ID ...]] [--rounds N]

Each patch is measured on the release on which the bystanders judge it, in at most two of the settings of steps.py whose
steps run its lines. Blocks of steps with and without the patch alternate in one process, with all other patches
applied; the ratio is that of the fastest steps. bench/steps_of_patches.json has the results; unless it is named, a
patch is measured again only after it has changed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import matrix  # noqa: F401 isort: skip  takes the checkout, whose dsfix/ has no patches, off sys.path again

import steps

from dsfix.catalogue.registry import catalogue
from matrix import fingerprints
from matrix.bystanders import records, space, trials
from matrix.bystanders.trials import ALL

RECORD = Path(__file__).with_suffix(".json")
_RANK = "steps_of_patches_rank"
_SETTINGS_OF_A_PATCH = 2
_TIMEOUT = 60.0  # seconds; without the patch a job may hang


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patch", nargs="+", default=[], metavar="ID")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    known = records.load_all()
    waiting: dict[str, list[str]] = {}
    for patch_id in options.patch or catalogue():
        home = records.home(patch_id, known)
        same = recorded.get(patch_id, {}).get("of") == fingerprints.of_changes(catalogue()[patch_id])
        if home is not None and catalogue()[patch_id].patch.default and (options.patch or not same):
            waiting.setdefault(home.release, []).append(patch_id)
    for release, ids in waiting.items():
        through = _through(release)
        with trials.Trials(release, marks=False) as every:
            for patch_id in ids:
                settings = [setting for setting, run in through if patch_id in run][:_SETTINGS_OF_A_PATCH]
                recorded[patch_id] = {
                    "of": fingerprints.of_changes(catalogue()[patch_id]),
                    "release": release,
                    "steps": [_measured(every, setting, patch_id, options.rounds) for setting in settings],
                }
                print(patch_id, recorded[patch_id], flush=True)
                RECORD.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def _through(release: str) -> list[tuple[space.Setting, list[str]]]:
    """The settings that the release can train, each with the patches whose lines a step runs."""
    found: list[tuple[space.Setting, list[str]]] = []
    with trials.Trials(release) as every:
        for levels in steps.SETTINGS:
            setting = {**space.plain(), **levels}
            run, _ = steps.result(every, ALL, setting, _TIMEOUT, _RANK, "", "0")
            if run is not None:
                found.append((setting, run))
    return found


def _measured(every: trials.Trials, setting: space.Setting, patch_id: str, rounds: int) -> Mapping[str, Any]:
    """The setting and the ratio's quartiles; where the job fails without the patch, how it ended."""
    shown = ", ".join(f"{name} {level}" for name, level in space.differing(setting).items()) or "plain"
    ratios, why = steps.result(every, ALL, setting, _TIMEOUT, _RANK, patch_id, str(rounds))
    if ratios is None:
        return {"setting": shown, "ended": why}
    quartiles = [round(each, 3) for each in statistics.quantiles(ratios, n=4)]
    return {"setting": shown, "quartiles": quartiles}


if __name__ == "__main__":
    sys.exit(main())
