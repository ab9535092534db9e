"""Consequences of an error elsewhere: ranks that wait for each other, and launchers that end a job."""

from __future__ import annotations

from ..signature import Role, Signature, pull

SIGNATURES = (
    Signature(
        id="libuv_not_in_torch",
        title="torch was built without libuv, which its TCPStore asks for",
        what="torch 2.4 and later use libuv for the store by default; the builds for Windows of several releases have "
        "none.",
        remedy="USE_LIBUV=0 in the environment of every rank (Windows: set USE_LIBUV=0), or ?use_libuv=0 in the "
        "init_method; a torch that has libuv, or one before 2.4; or WSL 2.",
        pattern=r"use_libuv was requested but PyTorch was buil[dt] without libuv",
        evidence=("https://github.com/deepspeedai/DeepSpeed/pull/7064",),
    ),
    Signature(
        id="process_group_initialized_twice",
        title="the default process group is initialized twice",
        what="torch.distributed has one default process group per process. Most likely the script calls "
        "torch.distributed.init_process_group after deepspeed.initialize or deepspeed.init_distributed, or twice; or, "
        "in the first releases (0.1), deepspeed.initialize is called for a second model.",
        remedy="Initialize once: `if not torch.distributed.is_initialized()` around it, or leave it to "
        "deepspeed.init_distributed. A second deepspeed.initialize in old releases: dist_init_required=False.",
        pattern=r"trying to initialize the default process group",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/65",),
    ),
    Signature(
        id="collective_timeout",
        title="a collective timed out: one rank did not join it",
        what="A rank has failed or is busy (saving, tokenizing, generating), or the ranks have diverged: different "
        "numbers of batches, experts without tokens with ZeRO-3, a branch that not all of them take. The timeout is "
        "torch's, 10 minutes, or DeepSpeed's: 30 through 0.19.5, 10 since 0.19.6.",
        remedy="Find the missing rank: its last lines or its traceback. MoE with ZeRO-3: "
        "deepspeed.utils.set_z3_leaf_modules. Long work on one rank: DEEPSPEED_TIMEOUT (minutes) or ddp_timeout "
        "(seconds, transformers).",
        pattern=r"Watchdog caught collective operation timeout|Timeout\(ms\)=\d+|Timed out waiting \d+ms for"
        r"|Some NCCL operations have failed or timed out|watchdog thread terminated with exception|NCCL timed out"
        r"|NCCL timeout|NCCL Timeout|NCCL watchdog thread|ollective operation timeout",
        role=Role.FOLLOW_UP,
        evidence=pull(5008),
    ),
    Signature(
        id="peer_gone",
        title="the connection to another rank is lost",
        what="That rank or its machine ended earlier.",
        remedy="Find the first error of the other ranks, also in the logs of the other machines.",
        pattern=r"Connection closed by peer|Connection reset by peer|Connection closed by remote peer"
        r"|NCCL communicator was aborted|remote process exited or there was a network error",
        role=Role.FOLLOW_UP,
    ),
    Signature(
        id="gloo_ranks_not_connected",
        title="gloo cannot connect the ranks",
        what="On the first start: the address of a rank, that of its host name, is unreachable. After an elastic "
        "restart (seen with torch 2.13): ranks connect to crashed ranks, whose addresses are still in the store of "
        "torch's agent.",
        remedy="On the first start: GLOO_SOCKET_IFNAME=the interface between the hosts (lo on a single host). After a "
        "restart: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for the launcher.",
        pattern=r"Gloo connectFullMesh failed",
        evidence=("https://github.com/pytorch/pytorch/issues/135712",),
    ),
    Signature(
        id="launcher_child_failed",
        title="the launcher reports that a rank failed",
        what="torchrun or the deepspeed launcher ends the other ranks with SIGTERM when one fails. A negative exit "
        "code is the signal that ended the first one; -9 (SIGKILL) and -7, -11 leave no error of its own.",
        remedy="A positive exit code: find that rank's own error above. A negative one: what sent the signal, -9 most "
        "likely the kernel as the host's memory was full (`dmesg`).",
        pattern=r"ChildFailedError(?![\s\S]{0,4000}?exitcode\s*: -(?:4|6|7|9|11)\b)"
        r"|exits with return code = (?!-(?:4|6|7|9|11)\b)-?\d+|Sending process \d+ closing signal SIGTERM"
        r"|CalledProcessError: Command '\['[^\n]*python[^\n]*returned non-zero|Killing subprocess \d+"
        r"|Signal 15 \(SIGTERM\)|got signal: 15",
        role=Role.FOLLOW_UP,
    ),
)
