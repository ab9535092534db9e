"""Environment variables that tell a process its rank, its GPU and where the ranks meet."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_cuda_visible_devices",
        names=(
            "CUDA_VISIBLE_DEVICES",
            "VISIBLE_DEVICES",
            "ASCEND_RT_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
        ),
        beside=(
            "one gpu",
            "first gpu",
            "launcher",
            "fails",
            "unused",
            "how",
            "visible devices + start",
        ),
        title="CUDA_VISIBLE_DEVICES and the deepspeed launcher",
        what="On one node without a hostfile the launcher takes it as --include localhost:… and deletes it; with "
        "--include, --exclude, --num_gpus or --num_nodes, or a hostfile, it is ignored. Numbers that torch does not "
        "see (a job of SLURM, a container; all but 0… in 0.12.0 to 0.15.1 and 0.19.7 or later) end in no slot on host "
        "localhost. Set in the script it is too late once torch has seen the GPUs, and ranks use LOCAL_RANK.",
        remedy="deepspeed --include localhost:2,3 train.py; or torchrun, which leaves the variable alone; dsfix's "
        "patches.",
        patches=(
            "launcher_visible_devices",
            "launcher_visible_devices_0_19_7",
        ),
        evidence=("deepspeed.launcher.runner.main",),
    ),
    Fact(
        id="of_local_rank",
        names=(
            "LOCAL_RANK",
            "args.local_rank",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_SIZE",
        ),
        title="RANK, WORLD_SIZE, LOCAL_RANK: set by a launcher",
        what="deepspeed, torchrun and accelerate launch set them for each process. Without RANK, WORLD_SIZE, "
        "MASTER_ADDR, MASTER_PORT and LOCAL_RANK, deepspeed.init_distributed looks for MPI (No module named 'mpi4py'), "
        "and KeyError 'LOCAL_RANK' follows. LOCAL_RANK must equal args.local_rank and MPI's; without "
        "torch.cuda.set_device(LOCAL_RANK) before the first .cuda() all ranks use GPU 0.",
        remedy="A launcher, also for one GPU; in a notebook os.environ with RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, "
        "MASTER_ADDR=localhost and MASTER_PORT.",
        evidence=("deepspeed.comm.comm.init_distributed",),
    ),
    Fact(
        id="of_master_port",
        names=(
            "MASTER_PORT",
            "MASTER_ADDR",
            "master_port",
            "main_process_port",
            "main_process_ip",
            "rdzv_endpoint",
        ),
        beside=(
            "connection",
            "hang",
            "fails",
            "nodes",
            "start",
            "several models",
        ),
        title="MASTER_ADDR and MASTER_PORT: where the ranks meet",
        what="All ranks connect to this port of the first node; 29500 is the default of all launchers, so that a "
        "second job on the host, or one that did not end, holds it (address already in use). On several nodes the "
        "address must be one that the others reach, not 127.0.0.1 or the name of a container, and the port open; NCCL "
        "then opens further ports.",
        remedy="deepspeed --master_port 29501 (accelerate --main_process_port, torchrun --master_port); "
        "--master_addr with the address of the interface between the nodes; ps for processes that are left.",
        evidence=("deepspeed.launcher.constants",),
    ),
    Fact(
        id="at_rank_variables",
        names=(
            "deepspeed/runtime/engine.py:_do_args_sanity_check",
            "deepspeed/comm/comm.py:mpi_discovery",
            "deepspeed/runtime/engine.py:_configure_with_arguments",
        ),
        title="the variables of a launcher are missing, or contradict the arguments",
        what="The process has no RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, most likely because it "
        "was started by plain python, srun or a debugger: DeepSpeed then looks for MPI (mpi4py). Otherwise two "
        "launchers are nested, and args.local_rank or MPI's rank is not LOCAL_RANK.",
        remedy="deepspeed, torchrun or accelerate launch, also for one GPU; with srun export the five variables from "
        "SLURM's; no default of local_rank but -1 in the script.",
        evidence=("deepspeed.comm.comm.init_distributed",),
    ),
    Fact(
        id="of_slurm_variables",
        names=(
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NTASKS",
            "SLURM_JOB_NODELIST",
            "SLURM_NODEID",
            "SLURM_GPUS_PER_NODE",
            "ntasks_per_node",
        ),
        title="SLURM's variables: DeepSpeed does not read them",
        what="deepspeed.initialize needs RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Of srun's tasks "
        "each has SLURM_PROCID and the like only, so that each takes itself for alone or looks for MPI; with "
        "--gpus-per-task each sees one GPU, which is number 0, whatever SLURM_LOCALID is. The deepspeed launcher under "
        "srun starts all ranks once per task.",
        remedy="srun with one task per node and torchrun in it; or RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID "
        "WORLD_SIZE=$SLURM_NTASKS, MASTER_ADDR the first of scontrol show hostnames.",
        evidence=("deepspeed.comm.comm.init_distributed",),
    ),
    Fact(
        id="at_init_process_group",
        names=(
            "deepspeed/comm/torch.py:init_process_group",
            "deepspeed/comm/torch.py:__init__",
        ),
        title="torch's process group is created here: the ranks do not meet",
        what="Most likely the port is taken (another job, a process that is left), MASTER_ADDR is not reachable from "
        "the other nodes, not all ranks were started, or the backend does not fit (nccl without a GPU or on Windows). "
        "A hang here, with several GPUs of one host, is NCCL's first exchange (P2P, IOMMU).",
        remedy="Another --master_port; the address of the interface between the nodes; NCCL_DEBUG=INFO, "
        "NCCL_P2P_DISABLE=1 to test; deepspeed.init_distributed('gloo') without GPUs.",
        evidence=("deepspeed.comm.torch.TorchBackend.init_process_group",),
    ),
)
