"""Consequences of an error elsewhere: ranks that wait for each other, and launchers that end a job."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

# several cards of one machine without P2P
_CARDS = (
    phrases("multiple |Multiple |several |two RTX |2 x RTX |2x RTX |2 x |4 x |8 x |multi ", "3090|4090|5090", "|s")
    + "|"
    + phrases("3090|4090|5090", " GPUs|多卡| 多卡|双卡| 双卡| gpus")
    + "|"
    + phrases("多卡|双卡|两张|多张|四张|八张|8张|4张|2张", "|RTX", "3090|4090|5090")
)
_HANGS = (
    r"[Dd]eadlock|\bhang|[Ss]tuck\b|[Ff]reez|(?:failing|\bfails?) (?:on|at|in) deepspeed\.init|illegal"
    r"|[Tt]imeout|卡住|卡死"
)

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
        title="a connection is lost: most likely to another rank",
        what="That rank or its machine ended earlier. In a download, or from ssh, it is the server that closed it.",
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
        r"|Signal 15 \(SIGTERM\)|got signal: 15|\[launch\.py:\d+:sigkill_handler\](?![^\n]*return code = -)",
        role=Role.FOLLOW_UP,
    ),
    Signature(
        id="nccl_not_in_torch",
        title="this torch has no NCCL",
        what="DeepSpeed's backend for GPUs is NCCL, which torch for Windows and macOS does not contain, nor one for "
        "the CPU. On another accelerator (NPU, XPU): DeepSpeed takes it for CUDA, or a script asks for nccl by name.",
        remedy="Linux or WSL 2 with torch for CUDA. Windows without it: one GPU and deepspeed.init_distributed('gloo') "
        "before deepspeed.initialize. NPU: import torch_npu first (backend hccl); XPU: ccl; DS_ACCELERATOR names the "
        "accelerator.",
        pattern=r"Distributed package doesn'?t have NCCL|doesn'?t have NCCL built"
        r"|没有内置 ?NCCL",
        role=Role.GENERAL,
    ),
    Signature(
        id="hccl_error",
        title="an error of HCCL, Ascend's NCCL",
        what="Most likely another rank failed or did not come within the time (the first error of all ranks), two "
        "processes share one NPU (as a vLLM beside the training), the NPUs' own network does not connect the hosts, or "
        "torch_npu and CANN do not fit.",
        remedy="The first error in the plog (~/ascend/log) of all ranks; one process per NPU "
        "(ASCEND_RT_VISIBLE_DEVICES); hccn_tool for the links between hosts; HCCL_CONNECT_TIMEOUT, HCCL_EXEC_TIMEOUT "
        "for slow starts; the CANN that torch_npu names.",
        pattern=r"HCCL runtime error|HCCL function error|HCCL error|HCCL Error|[Hh]ccl error|hccl 报错|hccl报错"
        r"|HCCL报错|HCCL 报错|HcclCommInitRootInfo|ProcessGroupHCCL"
        r"|hcclComm(?:Init|Destroy)\w*",
        role=Role.POSSIBLE,
        evidence=("https://github.com/vllm-project/vllm-ascend/issues/486",),
    ),
    Signature(
        id="gpus_without_p2p",
        title="several GPUs of one machine do not reach each other directly (P2P)",
        what="GeForce and workstation cards have no P2P over PCIe, or have it disturbed by the machine (IOMMU, ACS, "
        "virtualization); a driver or an NCCL that uses it all the same hangs, or fails with an illegal access, in the "
        "first exchange, as in deepspeed.initialize. One GPU works.",
        remedy="NCCL_P2P_DISABLE=1 (accelerate on RTX 40: with NCCL_IB_DISABLE=1) tells whether it is that; then a "
        "newer driver and a torch with a newer NCCL, or IOMMU and ACS switched off. all_reduce_perf of nccl-tests "
        "shows the same without DeepSpeed.",
        pattern=rf"(?:{_CARDS})[^\n]{{0,100}}(?:{_HANGS})|(?:{_HANGS})[^\n]{{0,100}}(?:{_CARDS})"
        r"|peer access is not supported between these two devices"
        r"|Using RTX 4000 series doesn't support faster communication",
        role=Role.POSSIBLE,
        evidence=("https://github.com/pytorch/pytorch/issues/152780",),
    ),
    Signature(
        id="hangs_between_epochs",
        title="the job hangs at the end of an epoch",
        what="Most likely the ranks have different numbers of batches: one has finished its loader and the others "
        "wait for it in the next exchange (a loader without a distributed sampler or drop_last, an IterableDataset, "
        "batches made by length). Otherwise something that only one rank does there: evaluating, saving, logging.",
        remedy="The same number of batches on every rank (DistributedSampler, drop_last=True; print len(loader) of "
        "each rank); save_checkpoint, evaluation and ZeRO-3's gathering on all ranks. py-spy dump shows where each "
        "rank is.",
        pattern=phrases(
            "frozen |freezes |freeze |hangs |hang |hanging |stuck |stucks |gets stuck |is stuck ",
            "after finishing first epoch|after the first epoch|after first epoch|after one epoch|after 1 epoch|after "
            "an epoch"
            "|after each epoch|after every epoch|at the end of the epoch|at the end of an epoch|at the end of epoch"
            "|at the end of each epoch|at the end of the first epoch|between epochs|at the last step|at the last batch",
        )
        + "|epoch结束后卡|epoch结束时卡|epoch后卡|最后一个batch卡|最后一步卡",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4730",),
    ),
    Signature(
        id="nccl_needs_gpus",
        title="NCCL is the backend, and this process sees no GPU",
        what="deepspeed.initialize starts torch.distributed with the accelerator's backend, nccl if DeepSpeed takes "
        "the machine for one with CUDA. NCCL needs a GPU for each rank.",
        remedy="On a machine without a GPU DS_ACCELERATOR=cpu (0.12 and later), or "
        'deepspeed.init_distributed(dist_backend="gloo") before; otherwise the driver, the container or '
        "CUDA_VISIBLE_DEVICES: nvidia-smi in the same place.",
        pattern=r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
    ),
)
