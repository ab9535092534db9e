"""The deepspeed launcher: its flags, the hostfile, and the variables by which a process knows its rank."""

from __future__ import annotations

from ..fact import Fact

_RUNNER = "deepspeed.launcher.runner"
_LAUNCH = "deepspeed.launcher.launch"
_BACKENDS = "deepspeed.launcher.multinode_runner"

FACTS = (
    Fact(
        id="hostfile_and_hosts",
        names=("hostfile", "deepspeed/launcher/runner.py:fetch_hostfile", "fetch_hostfile", "_parse_hostfile"),
        title="deepspeed --hostfile: what each line and each host needs",
        what="One line per host, `NAME slots=GPUS`. A path that is no file is only warned of, and this machine alone "
        "is used. Every host, the first one included, is logged in to by ssh without a password, by the name that the "
        "line has, and starts the same Python, by the same path, in the same directory.",
        remedy="`ssh NAME hostname` for each line from the first host, without 'localhost' among several hosts; the "
        "same paths, releases and data on all (a container needs an sshd and a port of its own). torchrun or --no_ssh "
        "on each host needs no ssh.",
        evidence=(f"{_RUNNER}:_parse_hostfile", f"{_BACKENDS}:PDSHRunner.get_cmd"),
    ),
    Fact(
        id="pdsh_environment",
        names=("pdsh", "PDSHRunner", "PDSH_RCMD_TYPE", "PDSH_SSH_ARGS_APPEND"),
        title="the deepspeed launcher with pdsh: what reaches the other hosts",
        what="pdsh is needed on the starting host only. The hosts get the current directory, and of the environment "
        "what begins with NCCL, PYTHON, MV2, UCX or MLFLOW; not PATH, LD_LIBRARY_PATH, CUDA_HOME or a virtual "
        "environment, and no interactive shell's settings. An argument with blanks is quoted once more.",
        remedy="The rest in .deepspeed_env (KEY=VALUE per line). For a container: an sshd in it, on a port that ssh "
        "is told (--ssh_port, ~/.ssh/config), or else the host itself is logged in to.",
        beside=("connection", "hang", "how + nodes", "importing", "ends", "building"),
        evidence=(f"{_RUNNER}:EXPORT_ENVS", f"{_BACKENDS}:PDSHRunner.get_cmd"),
    ),
    Fact(
        id="deepspeed_env_file",
        names=("deepspeed_env", "DS_ENV_FILE"),
        title=".deepspeed_env: when it is read",
        what="The launcher reads it on the starting host, from the home directory and the current one, and only when "
        "it starts hosts (several, or --force_multi): on one machine, with --no_ssh and under torchrun it has no "
        "effect. Each line is KEY=VALUE, without `export`, comments or empty lines. accelerate launch with pdsh "
        "appends its whole environment to it, which stays there.",
        remedy="On one machine export the variables before the launch. Remove old lines, of which the last one of a "
        "key counts.",
        patches=("launcher_env_file_of_home", "launcher_exports_quoted"),
        evidence=(f"{_RUNNER}:main",),
    ),
    Fact(
        id="visible_devices_and_launcher",
        names=("CUDA_VISIBLE_DEVICES",),
        title="CUDA_VISIBLE_DEVICES and the deepspeed launcher",
        what="Without a hostfile the launcher turns the variable into --include; beside --include, --exclude, "
        "--num_gpus or --num_nodes, and with a hostfile, the variable is ignored. The ranks get it set anew by the "
        "launcher, so that setting it in the script is too late, and rank N uses the Nth device of the list.",
        remedy="deepspeed --include localhost:2,3 (or the variable alone, without these flags). With torchrun or "
        "accelerate the variable is set before the command.",
        beside=(
            *("fails", "one gpu", "unused", "wrong", "how + launcher", "first gpu", "how + one gpu", "oom"),
            *("several models", "launcher"),
        ),
        patches=("launcher_visible_devices", "launcher_visible_devices_0_19_7"),
        evidence=(f"{_RUNNER}:main", f"{_LAUNCH}:main"),
    ),
    Fact(
        id="num_gpus_flag",
        names=("num_gpus", "num_nodes"),
        title="deepspeed --num_gpus, --num_nodes: what they count",
        what="--num_gpus N takes the devices 0 to N-1 of each host, whatever CUDA_VISIBLE_DEVICES or the hostfile's "
        "slots say; it excludes --include and --exclude. --num_nodes takes the first hosts of the hostfile: without a "
        "hostfile more than one is an error, as one host cannot know the others.",
        remedy="--include localhost:4,5 for devices other than the first ones. A hostfile for several hosts.",
        beside=(*("nodes", "launcher", "visible devices", "one gpu", "start + hang", "start + fails", "alone", "how"),),
        evidence=(f"{_RUNNER}:main",),
    ),
    Fact(
        id="master_port_flag",
        names=("master_port", "main_process_port", "TORCH_DISTRIBUTED_DEFAULT_PORT", "distributed_port"),
        title="the port where the ranks meet",
        what="Rank 0 listens at it, 29500 if nothing is said: each job of a machine needs its own, above 1023, and "
        "the other hosts must reach it through firewalls. The flag stands before the script's name (what follows goes "
        "to the script), and MASTER_PORT of a launcher counts more than distributed_port of init_distributed. NCCL "
        "and gloo open further ports.",
        remedy="deepspeed --master_port, torchrun --master_port, accelerate launch --main_process_port, the same on "
        "all hosts; all ports open between the hosts, containers with the host's network.",
        beside=("connection", "hang", "nodes", "several models", "start + fails", "how"),
        evidence=(f"{_RUNNER}:parse_args", "https://docs.pytorch.org/docs/stable/distributed.html"),
    ),
    Fact(
        id="master_addr_flag",
        names=("master_addr", "main_process_ip"),
        title="the address where the ranks meet",
        what="The deepspeed launcher takes the first address that `hostname -I` gives on the first host, which may be "
        "one of a container's bridge or of a network that the others do not reach. Without a hostfile it is "
        "127.0.0.1, whatever --master_addr says.",
        remedy="--master_addr with an address that all hosts reach, and a hostfile; NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME with the interface of that network.",
        beside=("connection", "hang", "nodes", "launcher", "start + fails", "importing + fails"),
        evidence=(f"{_RUNNER}:main",),
    ),
    Fact(
        id="no_ssh_flag",
        names=("no_ssh", "no_ssh_check", "node_rank"),
        title="deepspeed on several hosts without ssh: --no_ssh, --node_rank",
        what="--no_ssh (0.14.5 or later) starts only this host's ranks: the same command is needed on each host, with "
        "--node_rank 0, 1 and so on, the same --master_addr and --master_port, and a hostfile of all hosts. Without a "
        "hostfile each host is a job of its own at 127.0.0.1. --no_ssh_check leaves out one test, not ssh.",
        remedy="Before 0.14.5, or without a hostfile: torchrun --nnodes N --node_rank I --master_addr HOST on each "
        "host.",
        beside=("nodes", "launcher", "connection", "hang", "alone", "how", "fails + start"),
        evidence=(f"{_RUNNER}:main",),
    ),
    Fact(
        id="local_rank_of_launchers",
        names=("local_rank", "no_local_rank"),
        title="--local_rank and LOCAL_RANK: who sets them",
        what="The deepspeed launcher passes --local_rank=N to the script and sets LOCAL_RANK; torchrun and accelerate "
        "set only the variable, and a script without a launcher has neither (an argument's default, often -1 or 0, is "
        "no rank). A script that parses its arguments has to accept --local_rank, or the launcher gets "
        "--no_local_rank.",
        remedy='int(os.environ["LOCAL_RANK"]), which all launchers set; deepspeed --no_local_rank script.py where the '
        "argument is not known.",
        beside=("launcher + fails", "launcher + how", "one gpu", "first gpu", "alone", "none", "launcher + wrong"),
        evidence=(f"{_LAUNCH}:main",),
    ),
    Fact(
        id="force_multi_flag",
        names=("force_multi",),
        title="deepspeed --force_multi: one remote host",
        what="A hostfile with one host starts the ranks on this machine, without ssh to that host. --force_multi uses "
        "ssh (pdsh or another --launcher) for it, too; .deepspeed_env is read only then.",
        remedy="--force_multi where the only host of the hostfile is another machine.",
        evidence=(f"{_RUNNER}:main",),
    ),
    Fact(
        id="binding_cores",
        names=("bind_cores_to_rank", "bind_core_list", "deepspeed/utils/numa.py:get_numactl_cmd", "KMP_AFFINITY"),
        title="deepspeed --bind_cores_to_rank: what it needs and where it has no effect",
        what="It needs numactl, divides the physical cores (of --bind_core_list) by the ranks of the host, and sets "
        "OMP_NUM_THREADS to that share. KMP_AFFINITY must not be set. pdsh on several hosts does not pass it on.",
        remedy="numactl installed by the system's packages; on several hosts with pdsh use the CPU's binding of the "
        "job (numactl in a wrapper, or of the scheduler).",
        evidence=("deepspeed.utils.numa.get_numactl_cmd", f"{_BACKENDS}:PDSHRunner.get_cmd"),
    ),
    Fact(
        id="each_rank_log",
        names=("enable_each_rank_log", "save_pid"),
        title="deepspeed --enable_each_rank_log: one file per rank",
        what="The value is a directory, made on each host if it is missing; the output of each rank goes to "
        "TIME_rankN.log in it, and no longer to the terminal. On several hosts with pdsh it has no effect before "
        "0.16.2.",
        remedy="The first error of all ranks is the cause: the file in which a traceback stands earliest.",
        evidence=(f"{_LAUNCH}:main",),
    ),
    Fact(
        id="launchers_by_mpi",
        names=("launcher_args", "OpenMPIRunner", "MPICHRunner", "MVAPICHRunner", "IMPIRunner", "btl_tcp_if_include"),
        title="deepspeed --launcher openmpi, mpich, impi: what differs from pdsh",
        what="They start all slots of the hostfile and refuse --include, --exclude, --num_gpus and --num_nodes. "
        "OpenMPI is told to use eth0 unless --launcher_args has another btl_tcp_if_include, and UCX_TLS is tcp unless "
        "the environment or .deepspeed_env says otherwise. With OpenMPI and MVAPICH the ranks are asked from MPI, so "
        "that mpi4py is needed.",
        remedy='--launcher_args "--mca btl_tcp_if_include INTERFACE"; a hostfile with just the hosts and slots to use.',
        patches=("launcher_openmpi_environment", "launcher_exports_quoted"),
        evidence=(f"{_BACKENDS}:OpenMPIRunner",),
    ),
    Fact(
        id="slurm_and_ranks",
        names=("SlurmRunner", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_JOB_NODELIST", "SLURM_NODEID"),
        title="SLURM's variables are not those of torch.distributed",
        what="deepspeed.init_distributed reads RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. srun sets "
        "SLURM_PROCID and others instead, and with the former missing MPI is asked (mpi4py).",
        remedy="One task per node that runs torchrun --node_rank $SLURM_NODEID (accelerate launch --machine_rank) "
        "with the first host's name as address; or set the five variables from SLURM's in each task.",
        evidence=("deepspeed.comm.comm.init_distributed",),
    ),
    Fact(
        id="exit_code_of_rank",
        names=("deepspeed/launcher/launch.py:sigkill_handler", "sigkill_handler"),
        title="the launcher ended the other ranks, because one had failed",
        what="As soon as one process ends with a code other than 0 the launcher kills the other ones of its host and "
        "reports that code and the command. A negative code is a signal: -9 the system's memory or the scheduler "
        "(SIGKILL), -11 a crash in compiled code (SIGSEGV), -6 an abort, often of a NCCL timeout.",
        remedy="The cause stands above, in the traceback of the rank that failed first; for -9 see the kernel's log.",
        evidence=(f"{_LAUNCH}:main",),
    ),
    Fact(
        id="venv_of_hosts",
        names=("venv_script",),
        title="deepspeed --venv_script: an environment on each host",
        what="With pdsh the file is sourced on each host before the ranks are started; other launchers, and a job on "
        "one machine, do not use it. The hosts run the starting host's Python by its path in any case.",
        remedy="The environment at the same path on all hosts; then --venv_script is rarely needed.",
        affects={"deepspeed": ">=0.17.1"},
        patches=("launcher_venv_script_export",),
        evidence=(f"{_BACKENDS}:PDSHRunner.get_cmd",),
    ),
    Fact(
        id="launcher_reads_its_flags",
        names=(
            "deepspeed/launcher/runner.py:parse_resource_filter",
            "deepspeed/launcher/runner.py:parse_inclusion_exclusion",
            "parse_inclusion_exclusion",
            "deepspeed/launcher/runner.py:_parse_hostfile",
            "deepspeed/launcher/multinode_runner.py:validate_args",
            "deepspeed/launcher/runner.py:parse_node_config",
        ),
        title="the launcher refuses its flags or its hostfile",
        what="No rank has been started yet. --include and --exclude name hosts of the hostfile (localhost without "
        "one) and device numbers below the number of devices, HOST:0,1@OTHER:2; they exclude each other and "
        "--num_gpus, --num_nodes. Without a hostfile it also fails where torch sees no GPU, and where more than one "
        "node is asked for.",
        remedy="deepspeed --include localhost:0,1 script.py; python -c 'import torch; "
        "print(torch.cuda.device_count())'.",
        patches=("launcher_include_whole_host", "launcher_visible_devices"),
        evidence=(f"{_RUNNER}:parse_resource_filter",),
    ),
)
