"""`CUDA_VISIBLE_DEVICES=2,3 deepspeed train.py`, DeepSpeed 0.19.7 or later: ValueError, "No slot '2' specified".

Why: the launcher turns the variable into `--include localhost:2,3`. 0.15.2 to 0.19.6 took the slots that `--include`
    names as they were; from 0.19.7 on they are again checked against the number of devices, which counts only visible
    ones if CUDA was used during the import or torch counts without NVML.
How: as `launcher_visible_devices`: slots that CUDA_VISIBLE_DEVICES lists are accepted where there is no hostfile. The
    bug is in the launcher's process, which runs no script: use `python -m dsfix run deepspeed …` or `python -m dsfix
    enable`.
Workaround: CUDA_VISIBLE_DEVICES is unset, and `--include localhost:2,3` or `--num_gpus` given instead. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_RUNNER = "deepspeed.launcher.runner"

PATCH = Patch(
    title="CUDA_VISIBLE_DEVICES=2,3 deepspeed train.py with 0.19.7 or later: ValueError, no slot '2' on 'localhost'",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.19.7"},
    changes=(
        Edit(
            f"{_RUNNER}:main",
            replace="active_resources = parse_inclusion_exclusion(resource_pool, args.include, args.exclude)",
            code="""from dsfix.patches.launcher.launcher_visible_devices import with_visible
active_resources = parse_inclusion_exclusion(
    with_visible(resource_pool, args.include, locals()), args.include, args.exclude
)""",
            effect=RAN,
        ),
    ),
    symptom=r"launcher/runner\.py.*\n(.*\n){1,12}?.*No slot '\d+' specified on host 'localhost'",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6530": "related: fixed it in 0.15.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/8239": "introduced in 0.19.7",
    },
    present=(
        Source(f"{_RUNNER}:parse_inclusion_exclusion", "active_resources[hostname] = list(range(slots))"),
        Source(
            f"{_RUNNER}:parse_resource_filter", "for hostname, slots in parse_node_config_list(parse_str).items(): ..."
        ),
    ),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from dsfix.patches.launcher.launcher_visible_devices import reproduce

    seen: str = reproduce(lab)
    return seen
