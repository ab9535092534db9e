"""Environment variables that tell a process its rank, its GPU and where the ranks meet."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_local_rank",
        names=("LOCAL_RANK", "args.local_rank", "no_local_rank", "OMPI_COMM_WORLD_LOCAL_RANK"),
        title="--local_rank and LOCAL_RANK: who sets them",
        what="The deepspeed launcher passes --local_rank=N to the script and sets LOCAL_RANK; torchrun and accelerate "
        "launch set only the variable, so that an argument's default (0, -1) is no rank; without a launcher there is "
        "neither. initialize wants args.local_rank, if it is not negative, and OMPI_COMM_WORLD_LOCAL_RANK to be "
        "LOCAL_RANK. Without torch.cuda.set_device(LOCAL_RANK) before the first .cuda() all ranks use GPU 0.",
        remedy='int(os.environ["LOCAL_RANK"]), which all launchers set; deepspeed --no_local_rank script.py where the '
        "argument is not known; for one process without a launcher RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 "
        "MASTER_ADDR=localhost and a MASTER_PORT.",
        beside=("launcher", "one gpu", "first gpu", "alone", "none", "visible devices"),
        evidence=("deepspeed.launcher.launch:main", "deepspeed.runtime.engine:DeepSpeedEngine._do_args_sanity_check"),
    ),
    Fact(
        id="of_slurm_variables",
        names=(
            "SlurmRunner",
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NTASKS",
            "SLURM_JOB_NODELIST",
            "SLURM_NODEID",
            "SLURM_GPUS_PER_NODE",
            "ntasks_per_node",
        ),
        beside=("nodes", "launcher", "alone", "one gpu", "hang", "connection"),
        title="SLURM's variables: DeepSpeed does not read them",
        what="deepspeed.initialize needs RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Of srun's tasks "
        "each has SLURM_PROCID and the like only, also with deepspeed --launcher slurm, and looks for MPI (mpi4py); "
        "with --gpus-per-task each sees one GPU, which is number 0, whatever SLURM_LOCALID is. The deepspeed launcher "
        "under srun starts all ranks once per task.",
        remedy="srun with one task per node and torchrun in it; or RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID "
        "WORLD_SIZE=$SLURM_NTASKS, MASTER_ADDR the first of scontrol show hostnames.",
        evidence=("deepspeed.comm.comm.init_distributed",),
    ),
    Fact(
        id="at_init_process_group",
        names=(
            "deepspeed/comm/torch.py:__init__",
            "torch/distributed/rendezvous.py:_env_rendezvous_handler",
            "torch/distributed/rendezvous.py:_create_c10d_store",
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
