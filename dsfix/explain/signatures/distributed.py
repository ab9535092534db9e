"""Ranks that wait for each other, and launchers that end a job: what follows from an error elsewhere."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="collective_timeout",
        title="a collective has timed out: one rank did not come",
        what="A rank has failed or still works (saving, tokenizing, generating), or the ranks have gone different "
        "ways: other numbers of batches, experts without tokens under ZeRO-3, a branch that not all of them take. The "
        "time is torch's, 10 minutes, or DeepSpeed's: 30 up to 0.19.5, 10 from 0.19.6.",
        remedy="Look for the rank that did not come: its last lines, or its traceback. MoE with ZeRO-3: "
        "deepspeed.utils.set_z3_leaf_modules. Long work on one rank: DEEPSPEED_TIMEOUT (minutes), or "
        "ddp_timeout (seconds, transformers).",
        pattern=r"Watchdog caught collective operation timeout|Timeout\(ms\)=\d+|Timed out waiting \d+ms for",
        role=Role.FOLLOW_UP,
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/5008",),
    ),
    Signature(
        id="peer_gone",
        title="the connection to another rank is lost",
        what="That rank, or its machine, has ended before.",
        remedy="Look for the first error of the other ranks, and in the logs of the other machines.",
        pattern=r"Connection closed by peer|Connection reset by peer|Connection closed by remote peer"
        r"|NCCL communicator was aborted|remote process exited or there was a network error",
        role=Role.FOLLOW_UP,
    ),
    Signature(
        id="gloo_ranks_not_connected",
        title="gloo cannot connect the ranks",
        what="At a first start: the address that a rank gives itself, that of its host's name, cannot be reached. "
        "After an elastic restart (seen with torch 2.13): ranks are connected to those that have died, whose addresses "
        "are still in the store that torch's agent keeps.",
        remedy="At a first start: GLOO_SOCKET_IFNAME=the interface on which the hosts reach each other (lo on one "
        "host). After a restart: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before the launcher.",
        pattern=r"Gloo connectFullMesh failed",
        evidence=("https://github.com/pytorch/pytorch/issues/135712",),
    ),
    Signature(
        id="launcher_child_failed",
        title="the launcher says that a rank has failed",
        what="torchrun or the deepspeed launcher ends the other ranks with SIGTERM when one has failed. exitcode -9, "
        "or return code -9: the kernel has killed it, mostly for want of memory (`dmesg` says so).",
        remedy="Look for that rank's own error above.",
        pattern=r"ChildFailedError|exits with return code = -?\d+|Sending process \d+ closing signal SIGTERM"
        r"|Killing subprocess \d+|Signal 15 \(SIGTERM\)|got signal: 15",
        role=Role.FOLLOW_UP,
    ),
)
