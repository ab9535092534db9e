"""`deepspeed --include worker-1`: hosts listed without slots are dropped.

Why: `--include worker-0@worker-1:0,2` takes all slots of worker-0, as the help says. Since 0.15.2 the slots of a host
    that `--include` names are what it lists there: none, where it names only the host. Such hosts are dropped: with no
    other host the launcher fails with "IndexError: list index out of range", otherwise the job runs on fewer hosts.
How: a host that is named without slots has all of the hostfile's, as through 0.15.1 and since 0.19.7. The bug is in the
    launcher's process, which runs no script: use `python -m dsfix run deepspeed …` or `python -m dsfix enable`.
Changes: with `--include` of whole hosts, or of some whole and some by slots, the job runs on all of them. Where hosts
    were silently dropped, it has more ranks than before, and with `train_micro_batch_size_per_gpu` a larger batch.
Workaround: `--include` lists the slots of each host. You can keep it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PARSE = "deepspeed.launcher.runner:parse_inclusion_exclusion"

PATCH = Patch(
    title="deepspeed --include worker-1: hosts listed without slots are dropped",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.15.2,<0.19.7"},
    changes=(
        Edit(
            _PARSE,
            replace="node_configs[hostname] if hostname in node_configs else list(range(slots))",
            code="node_configs[hostname] if node_configs.get(hostname) else list(range(slots))",
            effect="a host included without slots got all of its slots",
            when="hostname in node_configs and not node_configs[hostname]",
        ),
    ),
    symptom=r"launcher/runner\.py.*\n\s*first_host = list\(active_resources\.keys\(\)\)\[0\]\n(.*\n){0,3}?.*IndexError",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/6530": "introduced in 0.15.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/8239": "fixed in 0.19.7",
    },
    fixed_in="0.19.7",
    present=(Source(_PARSE, "node_configs = parse_node_config_list(inclusion)"),),
    fixed=(Source(_PARSE, "active_resources[hostname] = list(range(slots))"),),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    from unittest import mock

    from ._launching import started

    _ = lab.deepspeed
    hostfile = lab.tmp / "hostfile"
    hostfile.write_text("worker-0 slots=4\nworker-1 slots=4\nworker-2 slots=4\n")
    every, expected = [0, 1, 2, 3], dict[str, dict[str, list[int]]]()
    expected["worker-1@worker-2"] = {"worker-1": every, "worker-2": every}
    expected["worker-0:0,2@worker-1"] = {"worker-0": [0, 2], "worker-1": every}
    expected["worker-0:3@worker-2:1"] = {"worker-0": [3], "worker-2": [1]}
    for include, hosts in expected.items():
        words = ["--hostfile", str(hostfile), "--force_multi", "--no_ssh_check", "--master_addr", "worker-0"]
        with mock.patch.dict(os.environ):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            found = started([*words, "--include", include, "train.py"])
        left_out = [host for host in hosts if host not in found]
        if left_out:
            raise BugPresent(f"--include {include} starts ranks on {', '.join(found) or 'no host'}")
        assert found == hosts, f"--include {include}: {found}"
    return "hosts included without slots take part with all of them"
