"""The deepspeed launcher: its flags, the hostfile, and what it hands over."""

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
        "what begins with PYTHON, MV2, UCX or MLFLOW, and NCCL (from 0.12.6 on if the starting host has NVIDIA "
        "GPUs); not CUDA_HOME, a virtual environment or, with NVIDIA, PATH and LD_LIBRARY_PATH, and no interactive "
        "shell's settings.",
        remedy="The rest in .deepspeed_env (KEY=VALUE per line). For a container: an sshd in it, on a port that ssh "
        "is told (--ssh_port, ~/.ssh/config), or else the host itself is logged in to.",
        beside=("connection", "hang", "how + nodes", "importing", "ends", "building"),
        evidence=(f"{_RUNNER}:EXPORT_ENVS", f"{_BACKENDS}:PDSHRunner.get_cmd"),
    ),
    Fact(
        id="deepspeed_env_file",
        names=("deepspeed_env", "DS_ENV_FILE", "EXPORT_ENVS"),
        title=".deepspeed_env: variables for the other hosts",
        what="The launcher reads it on the starting host, from the home directory and the current one (DS_ENV_FILE: "
        "another name), and only when it starts hosts (several, or --force_multi): on one machine, with --no_ssh and "
        "under torchrun it has no effect. A line without =, even an empty one, stops it. accelerate launch with "
        "pdsh appends its whole environment to it, which stays there.",
        remedy="One KEY=VALUE per line, without comments and empty lines: HF_HOME, CUDA_HOME, "
        "LD_LIBRARY_PATH and the like. On one machine export them instead; remove old lines.",
        patches=("launcher_env_file_of_home", "launcher_exports_quoted"),
        evidence=(f"{_RUNNER}:main", "accelerate.commands.launch:deepspeed_launcher"),
    ),
    Fact(
        id="visible_devices_and_launcher",
        names=("CUDA_VISIBLE_DEVICES", "VISIBLE_DEVICES"),
        title="CUDA_VISIBLE_DEVICES and the deepspeed launcher",
        what="Without a hostfile the launcher turns it into --include localhost:…; beside --include, --exclude, "
        "--num_gpus or several --num_nodes, and with a hostfile, it is ignored. UUIDs are refused, and in 0.12.0 to "
        "0.15.1 and from 0.19.7 on numbers may be, too (No slot … on host localhost). Set in the script it is too late "
        "once torch has used CUDA, and rank N uses the Nth device of the list.",
        remedy="deepspeed --include localhost:2,3 train.py, without the variable; or torchrun, which leaves the "
        "variable alone.",
        beside=("one gpu", "unused", "first gpu", "several models", "launcher", "visible devices"),
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
        beside=("launcher", "visible devices", "one gpu", "start + hang", "start + fails", "alone", "how + nodes"),
        evidence=(f"{_RUNNER}:main",),
    ),
    Fact(
        id="master_port_flag",
        names=("master_port", "TORCH_DISTRIBUTED_DEFAULT_PORT", "distributed_port", "rdzv_endpoint"),
        title="the port where the ranks meet",
        what="Rank 0 listens at it, 29500 if nothing is said: a second job on the host, or one that did not end, holds "
        "it, and the other hosts must reach it through firewalls. The flag stands before the script's name (what "
        "follows goes to the script), and MASTER_PORT of a launcher counts, not distributed_port of init_distributed. "
        "NCCL and gloo open further ports.",
        remedy="deepspeed --master_port, torchrun --master_port, accelerate launch --main_process_port, the same on "
        "all hosts, another one per job; all ports open between the hosts, containers with the host's network.",
        beside=("connection", "hang", "several models", "start + fails", "nodes + fails", "how + nodes"),
        evidence=(f"{_RUNNER}:parse_args", "https://docs.pytorch.org/docs/stable/distributed.html"),
    ),
    Fact(
        id="master_addr_flag",
        names=("master_addr",),
        title="the address where the ranks meet",
        what="Without --master_addr the deepspeed launcher takes the first address that `hostname -I` gives on the "
        "first host, which may be one of a container's bridge or of a network that the others do not reach. Without a "
        "hostfile it is 127.0.0.1, whatever --master_addr says.",
        remedy="--master_addr with an address that all hosts reach, and a hostfile; NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME with the interface of that network.",
        beside=("connection", "hang", "nodes", "launcher", "start + fails"),
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
        beside=("nodes + how", "nodes + fails", "nodes + hang", "launcher", "connection", "alone"),
        evidence=(f"{_RUNNER}:main",),
    ),
    Fact(
        id="force_multi_flag",
        names=("force_multi",),
        title="deepspeed --force_multi: one remote host",
        what="With one host in the hostfile the ranks start on this machine, whatever the host is: ssh only tests it, "
        "and asks its address. --force_multi starts them there (by pdsh or another --launcher); .deepspeed_env is read "
        "only then.",
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
        names=("enable_each_rank_log",),
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
        "the environment or .deepspeed_env says otherwise. With OpenMPI and MVAPICH the ranks are asked from MPI "
        "(mpi4py); 0.16.4 to 0.18.3 stop before: MPI environment variables are not set.",
        remedy='--launcher_args "--mca btl_tcp_if_include INTERFACE"; a hostfile with just the hosts and slots to use.',
        patches=("launcher_openmpi_environment", "launcher_exports_quoted"),
        evidence=(f"{_BACKENDS}:OpenMPIRunner",),
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
        patches=("launcher_include_whole_host", "launcher_visible_devices", "launcher_visible_devices_0_19_7"),
        evidence=(f"{_RUNNER}:parse_resource_filter",),
    ),
)
