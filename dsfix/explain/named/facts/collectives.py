"""Communication between the ranks: torch.distributed and NCCL as jobs with DeepSpeed meet them."""

from __future__ import annotations

from ..fact import Fact

_COMM = "deepspeed.comm.comm"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

FACTS = (
    Fact(
        id="mpi_discovery_without_launcher",
        names=("mpi4py", "libmpi.so", "MPI.COMM_WORLD"),
        title="DeepSpeed asks MPI only if no launcher has set the ranks",
        what="mpi4py is imported where RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT is not set: a script "
        "started by python, in a notebook or by srun. mpi4py needs an MPI library (libmpi.so) that it finds.",
        remedy="Start by deepspeed, torchrun or accelerate launch: then neither is needed. Otherwise install MPI and "
        "mpi4py together, from one source (conda-forge, or the system's MPI and a mpi4py that is built for it).",
        evidence=(f"{_COMM}:mpi_discovery",),
    ),
    Fact(
        id="direct_gpu_connections",
        names=("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_CUMEM_ENABLE"),
        title="NCCL_P2P_DISABLE: GPUs of one machine that do not reach each other",
        what="NCCL_P2P_DISABLE=1 sends data between the GPUs of a machine through host memory, which is slower. If a "
        "hang or an illegal access in the first collective goes away, the direct way is disturbed: consumer GPUs, "
        "virtual machines, PCI access control, an IOMMU. accelerate launch sets it and NCCL_IB_DISABLE by itself with "
        "RTX 40 cards and older drivers. It does not help where a rank has failed or diverged.",
        remedy="Keep it only if it makes the difference; NCCL_DEBUG=INFO names the connections, all_reduce_perf of "
        "nccl-tests tests them without DeepSpeed. In a container --ipc=host or a larger --shm-size.",
        beside=("hang", "slow", "connection", "how", "nccl + fails", "start"),
        evidence=(_NCCL,),
    ),
    Fact(
        id="network_interfaces",
        names=(
            *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NET"),
            *("NCCL_IB_GID_INDEX", "TP_SOCKET_IFNAME"),
        ),
        title="NCCL and gloo between hosts: interface and InfiniBand",
        what="Each chooses a network of its own: with several interfaces (docker0, virbr, a second network) it may be "
        "one that the other hosts do not reach, and the first collective hangs or fails. NCCL_SOCKET_IFNAME must fit "
        "an interface of each host (a prefix fits several, ^ excludes); NCCL_IB_DISABLE=1 uses TCP instead of "
        "InfiniBand or RoCE, much slower. The deepspeed launcher hands over NCCL's variables, GLOO's not.",
        remedy="`ip addr` for the names; both IFNAMEs on all hosts (.deepspeed_env); NCCL_DEBUG=INFO tells what is "
        "used. Fabric of a cloud needs its plugin.",
        beside=("hang", "slow", "connection", "nodes", "nccl + fails", "how"),
        evidence=(_NCCL, "deepspeed.launcher.runner:EXPORT_ENVS"),
    ),
    Fact(
        id="nccl_debug_output",
        names=("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        title="finding what a collective waits for",
        what="NCCL_DEBUG=INFO shows the connections and the first failing call. A hang after these are made is mostly "
        "not NCCL's: the ranks call different collectives, as one has another number of batches, skips a layer under "
        "ZeRO-3, generates or saves alone.",
        remedy="py-spy dump --pid PID for each rank: the one whose stack differs is the reason. "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL checks that the collectives agree.",
        beside=("hang", "connection"),
        evidence=(_NCCL, "https://docs.pytorch.org/docs/stable/distributed.html"),
    ),
    Fact(
        id="barrier_of_all_ranks",
        names=(
            *("dist.barrier", "distributed.barrier", "monitored_barrier", "monitoredBarrier", "wait_for_everyone"),
            *(
                "torch/distributed/distributed_c10d.py:barrier",
                "torch/distributed/distributed_c10d.py:monitored_barrier",
            ),
        ),
        title="a barrier ends when every rank of the group has called it",
        what="It waits, or fails by its timeout, where one rank does not come: in code for rank 0 only, after an "
        "error or an early end of one rank, with unequal numbers of batches, or as the ranks wait in different "
        "collectives. A first barrier that fails in NCCL often shows that the ranks share a GPU or that no device was "
        "set.",
        remedy="torch.cuda.set_device(local_rank) before it. Everything collective (forward under ZeRO-3, "
        "save_checkpoint, generate) on all ranks, and only the writing of files on one.",
        beside=("hang", "connection", "nccl"),
        evidence=("https://docs.pytorch.org/docs/stable/distributed.html",),
    ),
    Fact(
        id="making_the_process_group",
        names=("init_process_group", "torch/distributed/distributed_c10d.py:init_process_group", "TCPStore"),
        title="making the process group: every rank has to come, to one address",
        what="It waits until WORLD_SIZE processes have reached MASTER_ADDR:MASTER_PORT. If it hangs or times out: "
        "another address, port or world size on one host, a firewall, a name that resolves to 127.0.0.1, a rank that "
        "ended earlier, or two processes with the same RANK.",
        remedy="Compare RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of all processes; `nc -vz ADDRESS PORT` from "
        "the other hosts. With DeepSpeed: call either it or deepspeed.init_distributed, once.",
        beside=("nodes + connection", "nodes + hang", "nodes + fails", "nccl + hang", "alone", "launcher + hang"),
        evidence=(f"{_COMM}:init_distributed", "https://docs.pytorch.org/docs/stable/elastic/run.html"),
    ),
    Fact(
        id="world_size_of_one",
        names=("WORLD_SIZE",),
        title="a world size of 1 although there are several GPUs",
        what="The world size is the number of processes that a launcher has started, not that of the GPUs: python "
        "script.py is one process. Each host that is started as a job of its own (no hostfile, --num_machines 1, a "
        "different address) has its own world.",
        remedy="deepspeed, torchrun --nproc_per_node N or accelerate launch --num_processes N (of all hosts "
        "together), and the same rendezvous for all hosts.",
        beside=("alone", "one gpu", "nodes + wrong", "launcher"),
        evidence=(f"{_COMM}:init_distributed",),
    ),
    Fact(
        id="all_reduce_names",
        names=("all_reduce", "all_gather", "broadcast_object_list", "all_gather_object"),
        title="a collective of one's own beside DeepSpeed",
        what="Every rank of the group has to call it, in the same order and with tensors of one shape and type, on "
        "the rank's own device. all_reduce adds, and does not average unless ReduceOp.AVG is given. DeepSpeed itself "
        "averages the gradients; a loss is the one of the rank's own batch.",
        remedy="A script with nothing but init_process_group and one all_reduce tells whether NCCL itself hangs (then "
        "NCCL_P2P_DISABLE=1 and NCCL_SOCKET_IFNAME) or the ranks call different collectives.",
        beside=("hang", "differs + loss", "wrong + loss", "evaluation + hang", "how + loss"),
        evidence=("https://docs.pytorch.org/docs/stable/distributed.html",),
    ),
    Fact(
        id="launcher_traceback_alone",
        names=(
            *("torch/distributed/launcher/api.py:launch_agent", "torch/distributed/launcher/api.py:__call__"),
            *("accelerate/commands/launch.py:deepspeed_launcher", "accelerate/commands/launch.py:multi_gpu_launcher"),
            *("torch/distributed/elastic/agent/server/api.py:run", "sigkill_handler"),
            "deepspeed/launcher/launch.py:sigkill_handler",
        ),
        title="the launcher's own output: a rank has failed, and the reason is in another traceback",
        what="The launcher only reports that a process ended with a code other than 0, and ends the other ones of its "
        "host. A negative code is a signal: -9 (SIGKILL) the system's memory or the scheduler, -11 (SIGSEGV) a crash "
        "in compiled code, -6 an abort, often after a NCCL timeout.",
        remedy="Look above for the first traceback of a rank, for -9 in the kernel's log; torchrun --redirects 3 "
        "--log-dir DIR or deepspeed --enable_each_rank_log DIR keep each rank's output apart.",
        evidence=("torch.distributed.launcher.api:launch_agent", "deepspeed.launcher.launch:main"),
    ),
    Fact(
        id="collectives_of_deepspeed",
        names=(
            *("deepspeed/comm/torch.py:send", "deepspeed/comm/torch.py:recv"),
            *("deepspeed/comm/torch.py:all_to_all_single", "deepspeed/comm/torch.py:all_gather_coalesced"),
        ),
        title="the ranks exchange here: rarely is the fault in this place",
        what="Another rank has ended by its own error, has not come, or sends other sizes (another model, other frozen "
        "layers, another number of batches or tokens); two ranks use one GPU; or NCCL has no memory or no way to the "
        "other GPU.",
        remedy="The first error of all ranks; torch.cuda.set_device(local_rank) at the start; NCCL_DEBUG=INFO; py-spy "
        "dump on each rank where nothing ends.",
        evidence=("deepspeed.comm.torch:TorchBackend",),
    ),
)
