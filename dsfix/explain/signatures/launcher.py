"""Starting the ranks: the deepspeed launcher, ssh, ports, the variables that name a rank."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

_NODES = (
    phrases("multi|Multi", "-node|-Node|node|Node| node|-machine|-host", " |s|-|,|.|:")
    + "|"
    + phrases("multiple |several |different |across |two |both |Multiple ", "nodes|machines|servers|hosts")
    + "|hostfile|多机多卡|多机训练|多节点|multinodes|Multinodes"
)
_CONTAINERS = r"\b[Dd]ockers?\b|\b[Cc]ontainers?\b|[Kk]ubernetes|\bk8s\b|\b[Pp]ods?\b|\bEKS\b|容器"

SIGNATURES = (
    Signature(
        id="no_ssh_to_host",
        title="the deepspeed launcher cannot log in to a host by ssh",
        what="With a hostfile the launcher logs in to every host, the first one included, without a password. 255 is "
        "ssh's own failure: the name does not resolve, the port is another one, the key is not accepted, the host's "
        "key is unknown.",
        remedy="Make `ssh -o PasswordAuthentication=no HOST hostname` work from this machine, for each line of the "
        "hostfile, as this user (in a container: with its own keys; --ssh_port PORT). On one machine remove the "
        "hostfile (its default is /job/hostfile). Without ssh: --no_ssh, or torchrun on each host.",
        pattern=r"was not reachable via ssh|ssh exited with exit code 255"
        r"|PasswordAuthentication=no[^\n]*exit status 255"
        r"|Host key verification failed|Permission denied \(publickey|ssh: connect to host \S+ port"
        r"|ssh: Could not resolve hostname|Permission denied, please try again",
        evidence=("https://github.com/deepspeedai/DeepSpeed/blob/v0.19.5/deepspeed/launcher/runner.py",),
    ),
    Signature(
        id="pdsh_ssh_port",
        title="deepspeed --ssh_port with pdsh: KeyError, PDSH_SSH_ARGS_APPEND",
        what="Through 0.14.0 the launcher appends the port to a variable that does not exist.",
        remedy='DeepSpeed 0.14.1 or later, or export PDSH_SSH_ARGS_APPEND="" before the launch.',
        pattern=r"KeyError: '?PDSH_SSH_ARGS_APPEND",
        affects={"deepspeed": "<0.14.1"},
        evidence=pull(5318),
    ),
    Signature(
        id="launcher_backend_missing",
        title="the program that the deepspeed launcher starts hosts with is not installed",
        what="With several hosts the launcher calls pdsh by default.",
        remedy="Install pdsh on the host that starts the job; or --launcher openmpi, mpich, slurm; or torchrun on "
        "each host.",
        pattern=r"launcher '\w+' not installed|pdsh: command not found|No such file or directory: 'pdsh'"
        r"|Requires PDSH Dep|requires pdsh\b|requires the dependency `?pdsh|pdsh is required|needs pdsh\b",
    ),
    Signature(
        id="port_in_use",
        title="the port of the job is in use",
        what="Rank 0 listens at MASTER_PORT (29500 by default). Another job on this machine, or a process that an "
        "earlier job left behind, has it; or a script initializes distributed twice with one address.",
        remedy="deepspeed --master_port PORT, torchrun --master_port PORT, accelerate launch --main_process_port PORT. "
        "Leftover processes: `ss -ltnp` shows who has the port.",
        pattern=r"Address already in use|[Aa]ddress in [Uu]se\b|EADDRINUSE|server socket has failed to (?:bind|listen)",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3878",),
    ),
    Signature(
        id="several_jobs_on_machine",
        title="several jobs on one machine",
        what="Each job needs a port and GPUs of its own. By default all take port 29500, and the deepspeed launcher "
        "all GPUs.",
        remedy="deepspeed --master_port PORT --include localhost:2,3, another port and other GPUs for each job; "
        "torchrun --master_port, accelerate launch --main_process_port with CUDA_VISIBLE_DEVICES.",
        pattern=r"(?:[Mm]ultiple|[Tt]wo|[Ss]everal) (?:[Dd]eep[Ss]peed |training )?(?:runs|jobs|tasks|trainings"
        r"|experiments) (?:in|on|at) (?:"
        + phrases("a single |one |the same |same ", "machine|node|server|host")
        + ")"
        + r"|(?:同一台机器|同一台服务器|一台机器上)[^\n]{0,20}(?:两个|多个)(?:任务|训练|实验)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/191",),
    ),
    Signature(
        id="hostfile_not_found",
        title="the launcher does not use the hostfile",
        what="--hostfile PATH counts only if PATH is a file as seen from the directory where the launcher is started. "
        "Otherwise the launcher says that it is unable to find a hostfile, and starts the ranks of this machine only.",
        remedy="An absolute path, written before the launcher starts; what the shell makes of variables in it (echo).",
        pattern=phrases(
            "detect |use |read |recognize |parse |find ", "the |a |my |", "hostfile with|hostfile named|hostfile at"
        )
        + r"|unable to detect (?:the |a |my )?hostfile|hostfile (?:is )?(?:being )?(?:ignored|not used|not detected"
        r"|not read)|ignores (?:the |my )?hostfile",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5221",),
    ),
    Signature(
        id="rank_variables_missing",
        title="the job was started without a launcher",
        what="DeepSpeed finds neither the variables of a launcher (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR) nor "
        "MPI: the script was started by python, or in a notebook.",
        remedy="deepspeed train.py or torchrun --nproc_per_node N train.py. In a notebook with one GPU set RANK=0, "
        "LOCAL_RANK=0, WORLD_SIZE=1, MASTER_ADDR=localhost, MASTER_PORT=29500 in os.environ first.",
        pattern=r"No module named 'mpi4py'|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
        r"|KeyError: '(?:LOCAL_RANK|WORLD_SIZE)'|DeepSpeed requires the LOCAL_RANK environment",
        role=Role.GENERAL,
    ),
    Signature(
        id="local_rank_argument",
        title="the script does not accept the launcher's --local_rank",
        what="The deepspeed launcher (without --no_local_rank) and torch.distributed.launch pass it to the script, the "
        "latter as --local-rank since torch 2.0.",
        remedy="parser.add_argument('--local_rank', '--local-rank', type=int, default=-1), "
        "deepspeed.add_config_arguments for DeepSpeed's own options, or deepspeed --no_local_rank.",
        pattern=r"unrecognized arguments: [^\n]*--local[_-]rank|HfArgumentParser: [^\n]*--local[_-]rank",
    ),
    Signature(
        id="not_initialized_distributed",
        title="a collective before distributed was initialized",
        what="Code asks for the rank or runs a collective before deepspeed.init_distributed, deepspeed.initialize or "
        "torch.distributed.init_process_group was called in this process, or after it was destroyed.",
        remedy="Call deepspeed.init_distributed() first; with transformers make the TrainingArguments before the "
        "model.",
        pattern=r"DeepSpeed backend not set, please initialize it|Distributed backend is not initialized"
        r"|Default process group has not been initialized|Default process group is not initialized"
        r"|Torch distributed not initialized\. Please set dist_init_required|cannot be scattered without initializing",
        role=Role.GENERAL,
    ),
    Signature(
        id="nccl_failed",
        title="NCCL reports an error",
        what='Most likely another rank ended first (see its log). "unhandled cuda error", "invalid usage": two ranks '
        'on one GPU, or a driver that does not fit. "unhandled system error", "internal error": network interfaces or '
        "shared memory (/dev/shm of a container).",
        remedy="NCCL_DEBUG=INFO shows the reason a few lines above the error. Network: NCCL_SOCKET_IFNAME; containers: "
        "--shm-size or --ipc=host; cards without P2P: NCCL_P2P_DISABLE=1.",
        pattern=r"NCCL error in: |unhandled cuda error|unhandled system error|ncclUnhandledCudaError|ncclSystemError"
        r"|ncclInternalError|ncclRemoteError|ncclInvalidUsage|NCCL Error \d|\bnccl error|NCCL报错"
        r"|nccl报错|nccl 报错|NCCL 报错",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="nccl_shared_memory",
        title="NCCL gets no shared memory: /dev/shm is too small",
        what="The ranks of a host exchange data through /dev/shm, of which a container has 64 MB by default.",
        remedy="docker run --shm-size=16g or --ipc=host (Kubernetes: an emptyDir of medium Memory at /dev/shm); `df -h "
        "/dev/shm` while it runs. NCCL_SHM_DISABLE=1 does without it, slower.",
        pattern=r"Error while creating shared memory segment|NC[CL]L:? No space left on device"
        r"|Call to (?:posix_fallocate|shm_open) failed|\bncclShmOpen\(\)",
        evidence=("https://github.com/huggingface/transformers/issues/11658",),
    ),
    Signature(
        id="rendezvous_failed",
        title="the ranks do not find each other",
        what="A rank cannot reach MASTER_ADDR:MASTER_PORT, or not all ranks arrive. Most likely: the address is wrong "
        "or not reachable from that host (a firewall, a container, a host name that resolves to 127.0.1.1), the "
        "number of ranks or nodes is larger than what was started, or rank 0 has failed (its log). Later in a job: "
        "one rank is busy or gone.",
        remedy="Start with the address of rank 0's network interface and an open port; the same number of nodes "
        "everywhere; `nc -vz ADDR PORT` from the other hosts while rank 0 waits.",
        pattern=r"client socket has failed to connect(?![^\n]{0,200}errno: 9[79]\b)|client socket has timed out"
        r"|Socket Timeout"
        r"|wait timeout after \d+ms"
        r"|timed out after \d+ ?(?:seconds|ms)? ?waiting for clients|RendezvousTimeoutError|RendezvousConnectionError"
        r"|Timed out initializing process group",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="socket_of_ipv6",
        title="c10d: a socket cannot connect with errno 97 or 99 (harmless)",
        what="torch tries the address by IPv6 first, which this host or container does not have, then by IPv4.",
        remedy="Nothing. If the ranks do not find each other, it is for another reason.",
        pattern=r"client socket (?:has failed to connect|cannot be initialized to connect)[^\n]{0,200}errno: 9[79]\b",
        role=Role.NOTE,
        evidence=("https://github.com/pytorch/pytorch/blob/v2.1.0/torch/csrc/distributed/c10d/socket.cpp",),
    ),
    Signature(
        id="several_models",
        title="one Accelerator prepares several models for DeepSpeed",
        what="An Accelerator has one DeepSpeed engine; accelerate 1.0 and later know several by plugins.",
        remedy="One Accelerator per model, or deepspeed_plugins={name: DeepSpeedPlugin(…)} and "
        "select_deepspeed_plugin; models that are not trained need not be prepared without ZeRO-3.",
        pattern=r"same `Accelerator\(\)` instance with multiple models",
    ),
    Signature(
        id="terminal_closed",
        title="the job was ended by SIGHUP: its terminal was closed",
        what="The session (ssh, a notebook) ended, and torchrun ends the ranks; nohup does not protect from it.",
        remedy="Start it in tmux or screen, with setsid, or by a scheduler.",
        pattern=r"Received Signals\.SIGHUP|Received 1 death signal|got signal: 1\b",
    ),
    Signature(
        id="two_ranks_on_one_gpu",
        title="two ranks use the same GPU",
        what="NCCL needs a GPU for each rank. The script does not select its own (torch.cuda.set_device(local_rank)), "
        "more ranks are started than GPUs, or CUDA_VISIBLE_DEVICES is the same single GPU for all.",
        remedy="deepspeed.init_distributed after torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); as many ranks "
        "as GPUs.",
        pattern=r"Duplicate GPU detected",
    ),
    Signature(
        id="chat_step_failed",
        title="DeepSpeed-Chat: a step ended with an error, which is in its own log",
        what="train.py only starts the step; its output went into training.log.",
        remedy='`python -m dsfix explain` on the file after "Log output:". Status 127: the deepspeed launcher is not '
        "found.",
        pattern=r"Step \d exited with non-zero status",
        role=Role.FOLLOW_UP,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3246",),
    ),
    Signature(
        id="hostname_without_addresses",
        title="`hostname -I` fails: this system's hostname does not list addresses",
        what="Without a launcher's variables DeepSpeed asks MPI, and hostname -I (of Linux) for the address of rank 0. "
        "Windows, macOS and some containers do not have it.",
        remedy="Start with torchrun or the deepspeed launcher; in a script or notebook with one process set RANK=0, "
        "LOCAL_RANK=0, WORLD_SIZE=1, MASTER_ADDR=localhost, MASTER_PORT=29500 in os.environ first.",
        pattern=r"Command '\['hostname(?: -I'|', '-I')\]' returned non-zero",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1937",),
    ),
    Signature(
        id="visible_devices_not_numbers",
        title="deepspeed launcher: CUDA_VISIBLE_DEVICES is not a list of numbers",
        what="The launcher takes the variable apart at commas and expects numbers. Schedulers and containers also "
        "write UUIDs (GPU-…, MIG-…), and an empty or a quoted list fails as well.",
        remedy="CUDA_VISIBLE_DEVICES=0,1,… before deepspeed; or unset it and deepspeed --include localhost:0,1; or "
        "torchrun.",
        pattern=r"invalid literal for int\(\) with base 10: '(?:GPU-|MIG-|\\?['\"])"
        r"|split\(SLOT_SEP\)[\s\S]{0,300}invalid literal for int\(\)",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5278",),
    ),
    Signature(
        id="master_address_empty",
        title="deepspeed launcher: the address of the first host is empty",
        what="Without --master_addr the launcher takes what `hostname -I` prints on the first host, over ssh. There it "
        "printed nothing (containers, Kubernetes), or a banner of the shell came instead. The arguments behind "
        "--master_addr= then shift.",
        remedy="--master_addr ADDR for deepspeed; no output of .bashrc in shells that are not interactive.",
        pattern=r"Using IP address of\s+for node|--master_addr= --|--master_addr=\s+--master_port",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2612",),
    ),
    Signature(
        id="launcher_arguments",
        title="the launcher does not understand its command line",
        what="Options of the launcher stand before the script, those of the script after it. Most likely one is on the "
        "wrong side, is misspelled or of another release; or a value is empty or has blanks that a shell on the way "
        "took apart.",
        remedy="deepspeed --num_gpus 4 train.py --deepspeed ds_config.json; deepspeed --help; quotes around variables; "
        "a deepspeed whose shell prints nothing over ssh.",
        pattern=r"launch\.py: error: |runner\.py: error: |deepspeed: error: |usage: launch\.py|usage: deepspeed "
        r"|arguments are required: (?:training_script|user_script)|torchrun: error: "
        r"|accelerate <command> \[<args>\]: error"
        r"|usage: accelerate <command>",
        role=Role.GENERAL,
    ),
    Signature(
        id="program_missing",
        title="a program is not installed, or not in PATH",
        what="A command was started that this host, or this environment, does not have: numactl (for "
        "--bind_cores_to_rank), ninja, nvcc, mpirun, ssh, hostname, a compiler, or the launcher itself.",
        remedy="Install it on every host (apt install numactl, openmpi-bin, openssh-client; pip install ninja), "
        "activate the environment there, or leave out the option that needs it.",
        pattern=r"No such file or directory: '(?:numactl|ninja|nvcc|hipcc|mpirun|mpiexec|srun|ssh|scp|lspci|lscpu|df"
        r"|which"
        r"|hostname|git|gcc|g\+\+|c\+\+|cl|nvidia-smi|rocminfo|rocm_agent_enumerator|torchrun|python|deepspeed|ip)'"
        r"|(?:numactl|ninja|mpirun|mpiexec|srun|torchrun|accelerate|ds_report|hostname|nvidia-smi|python)\d?: "
        r"command not found|\[WinError 2\]",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/6565",),
    ),
    Signature(
        id="started_twice_by_reloader",
        title="the script is started a second time by a server's reloader, which wants the same port",
        what="Flask's debug mode (Restarting with stat) starts the script again in a child process, while the parent "
        "keeps the port of torch.distributed.",
        remedy="app.run(debug=False), or use_reloader=False; initialize DeepSpeed in the child only.",
        pattern=r"Restarting with (?:stat|watchdog|inotify|watchfiles)[\s\S]{0,4000}(?:Address already in use"
        r"|EADDRINUSE"
        r"|failed to (?:bind|listen))",
        evidence=("https://github.com/OptimalScale/LMFlow/issues/270",),
    ),
    Signature(
        id="mpi_launch_failed",
        title="MPI could not start the ranks",
        what="mpirun's message says why: fewer slots than ranks, a host that cannot be reached, a program that the "
        "host does not have, or another MPI there.",
        remedy="slots=N in the hostfile (--oversubscribe for a test); the same MPI and environment on all hosts; or "
        "--launcher pdsh, torchrun.",
        pattern=r"There are not enough slots available in the system|ORTE was unable to reliably start"
        r"|mpirun was unable to"
        r"|An ORTE daemon has unexpectedly failed|prterun was unable to|PMIX ERROR"
        r"|mpirun has detected an attempt to run as "
        r"root",
        role=Role.GENERAL,
    ),
    Signature(
        id="remote_command_failed",
        title="a host's own launcher ended with an error",
        what="pdsh reports the exit code of what it started on that host: the error is in the lines that begin with "
        "the host's name. 127: the command was not found there; 1: most likely the script.",
        remedy="Look for the first error of that host; the same Python at the same path on all hosts.",
        pattern=r"ssh exited with exit code (?!255)\d+",
        role=Role.FOLLOW_UP,
    ),
    Signature(
        id="hostfile_absent",
        title="no hostfile: the launcher uses this machine only (harmless on one)",
        what="Without a hostfile (/job/hostfile by default) the launcher starts one rank for each GPU of this machine.",
        remedy="Nothing on one machine; with several: deepspeed --hostfile PATH.",
        pattern=r"Unable to find hostfile, will proceed with training with local",
        role=Role.NOTE,
    ),
    Signature(
        id="command_not_executable",
        title="the deepspeed command may not be executed",
        what="The file bin/deepspeed of the environment has no right of execution (copied, unpacked or installed by "
        "another user), or its file system is mounted without it (noexec). A module is only read, so that "
        "`python -m` works.",
        remedy="chmod +x \"$(python -c 'import sys; print(sys.prefix)')/bin/deepspeed\"; or `python -m "
        "deepspeed.launcher.runner` in place of `deepspeed`, with the same arguments.",
        pattern=r"(?:^|[\s/`'\"])deepspeed[`'\"]{0,3}(?: \(\w+ \w+\)| command| launcher| script|: (?:line \d+: )?)"
        r"[^\n]{0,60}?(?<!\w)(?:is not executable|[Pp]ermission denied(?! \(|, please))"
        r"|[Pp]ermission denied[\"'`]{0,3}(?! \(|, please)[^\n]{0,60}[\"'`( ]deepspeed[\"'`]{0,3} (?:command|launcher)",
        role=Role.GENERAL,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1475",),
    ),
    Signature(
        id="mpi_differs_from_torch",
        title="the ranks of MPI are not those that torch.distributed was set up with",
        what="Not all of RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, so DeepSpeed asks MPI for "
        "them. The script has set up torch.distributed before that, from its own arguments or from variables that "
        "differ from MPI's rank and size.",
        remedy="Under mpirun call deepspeed.init_distributed() before, or instead of, init_process_group: it sets "
        "these variables from MPI. Or start the script with the deepspeed launcher or torchrun.",
        pattern=r"MPI (?:world size|rank) \d+ does not match torch (?:world size|rank)",
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/461",),
    ),
    Signature(
        id="rank_illegal_instruction",
        title="exit code -4: a rank executed an instruction that this CPU does not have (SIGILL)",
        what="Most likely an operator was compiled on another CPU (AVX512), in a cache that several machines share, or "
        "in an image; or a package is built for newer CPUs.",
        remedy="Remove ~/.cache/torch_extensions, or one TORCH_EXTENSIONS_DIR per kind of machine; DS_BUILD_OPS=0 when "
        "installing in an image.",
        pattern=r"return code ?=? ?-4\b|exitcode\s*: -4\b|Signal 4 \(SIGILL"
        r"|(?<!an )\b[Ii]llegal [Ii]nstruction(?! was)|<Signals\.SIGILL: 4>",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="mpi_asked_without_launcher",
        title="MPI was asked for the ranks, and MPI does not start",
        what="The script was started without a launcher (python, or a scheduler that sets no RANK, LOCAL_RANK and "
        "WORLD_SIZE), so DeepSpeed asks mpi4py, whose MPI fails: another MPI than mpirun's, or libraries that do not "
        "fit (pmix).",
        remedy="Start with deepspeed or torchrun: then MPI is not asked. One process: RANK=0, LOCAL_RANK=0, "
        "WORLD_SIZE=1, MASTER_ADDR=localhost, MASTER_PORT=29500. With mpirun: mpi4py that is built for the same MPI "
        "(pip install --no-binary mpi4py mpi4py).",
        pattern=r"attempting to detect MPI environment[\s\S]{0,2000}(?:MPI_Init|MPI_ERRORS_ARE_FATAL|PMIX? ERROR"
        r"|pmix_mca)"
        r"|An error occurred in MPI_Init|Segmentation fault \(11\)[\s\S]{0,1500}mpi4py/MPI\.",
        role=Role.POSSIBLE,
        evidence=("https://github.com/locuslab/open-unlearning/issues/8",),
    ),
    Signature(
        id="nodes_in_containers",
        title="several nodes with containers or pods",
        what="The deepspeed launcher logs in to each host of the hostfile by ssh and starts the same Python in the "
        "same directory. By port 22 that is the host itself, not the container: there DeepSpeed is missing, or nobody "
        "answers. In the container an sshd must run with a port of its own, the keys, and the ports of MASTER_PORT "
        "and NCCL must be open (host network).",
        remedy="docker run --net=host --ipc=host; sshd in each container, deepspeed --ssh_port PORT (or Port in "
        "~/.ssh/config); NCCL_SOCKET_IFNAME. Without ssh: torchrun --nnodes N --node_rank I --master_addr ADDR in each "
        "container (Kubernetes: an operator such as PyTorchJob sets these), or deepspeed --no_ssh --node_rank I.",
        pattern=rf"(?:{_NODES})[^\n]{{0,120}}(?:{_CONTAINERS})|(?:{_CONTAINERS})[^\n]{{0,120}}(?:{_NODES})"
        r"|(?:DeepSpeed|deepspeed|Deepspeed)[^\n]{0,60}(?:[Kk]ubernetes|\bk8s\b)",
        role=Role.FAMILY,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/174",
            "https://github.com/deepspeedai/DeepSpeed/issues/2920",
        ),
    ),
    Signature(
        id="accelerate_multinode_launcher",
        title="accelerate with DeepSpeed on several machines: its launcher is pdsh unless the config says standard",
        what="With num_machines > 1 and no deepspeed_multinode_launcher: standard, accelerate calls the deepspeed "
        "launcher, on one machine only, which starts the others by pdsh and ssh from deepspeed_hostfile. Without a "
        "hostfile it starts this machine's ranks alone; started on each machine, each is a job of its own.",
        remedy="deepspeed_multinode_launcher: standard in the accelerate config, and accelerate launch on every "
        "machine with its --machine_rank and the same main_process_ip and port; or deepspeed_hostfile: PATH, pdsh and "
        "ssh without a password, and accelerate launch on the first machine only.",
        pattern=r"deepspeed_multinode_launcher: (?!standard)\w|fixing deepspeed multi-?node launcher"
        r"|deepspeed_config:(?:(?!launcher: standard)[\s\S]){0,1200}num_machines: (?:[2-9]|1\d)\b",
        role=Role.POSSIBLE,
        evidence=("https://github.com/huggingface/accelerate/pull/514", "the source of accelerate 1.15.0"),
    ),
    Signature(
        id="yaml_after_local_rank",
        title="the deepspeed launcher puts --local_rank before the script's own argument",
        what="A script that takes a file of settings (YAML, JSON) as its only argument, as transformers' "
        "HfArgumentParser and LLaMA-Factory do, does not find it there: the launcher's --local_rank=N comes first. It "
        "then asks for arguments that are in the file.",
        remedy="deepspeed --no_local_rank …; or torchrun, llamafactory-cli; or each setting as an argument.",
        pattern=r"arguments are required: [\s\S]{0,1500}'?--local[-_]rank=\d+'?,? '?[^\n' ]+\.(?:ya?ml|json)\b"
        r"|'--local[-_]rank=\d+', '[^\n' ]+\.(?:ya?ml|json)'[\s\S]{0,1500}arguments are required",
    ),
    Signature(
        id="connection_reset_at_start",
        title="several nodes: the connection is reset while the ranks meet",
        what="The other side closed it: most likely rank 0 or another rank has ended already (its own log), a firewall "
        "or a proxy closes the port, MASTER_ADDR is another machine or another service than rank 0, or, with hundreds "
        "of ranks, too many connect at once.",
        remedy="The first error in the logs of all hosts; nc -vz MASTER_ADDR MASTER_PORT from each; an address and a "
        "port that are open between the hosts (also between pods); NCCL_SOCKET_IFNAME.",
        pattern=rf"(?:{_NODES}|[Mm]ulti [Nn]ode|scaling up)[^\n]{{0,80}}Connection reset by peer"
        rf"|Connection reset by peer[^\n]{{0,80}}(?:{_NODES}|[Mm]ulti [Nn]ode|scaling up)"
        r"|ncclUniqueId from \[0\][^\n]*(?:Connection reset by peer|Broken pipe)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1502",),
    ),
    Signature(
        id="under_slurm",
        title="DeepSpeed under SLURM",
        what="srun starts processes and sets SLURM_PROCID, SLURM_LOCALID and SLURM_NTASKS; DeepSpeed and torch want "
        "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. A launcher (torchrun, deepspeed, accelerate) "
        "makes them, and starts all ranks of a node: then one task per node. Lightning reads SLURM's and starts "
        "nothing: then one task per GPU, and devices and num_nodes that agree with the job. The GPUs that a job gets "
        "are numbered from 0 in it, also for --include.",
        remedy="#SBATCH --ntasks-per-node=1; srun torchrun --nnodes $SLURM_NNODES --nproc_per_node GPUS "
        "--rdzv_backend c10d --rdzv_endpoint $HEAD:29500 script; or deepspeed --launcher slurm with a hostfile, "
        "without ssh --no_ssh --node_rank I on each node. Lightning: --ntasks-per-node = devices, and srun python.",
        pattern=rf"(?:{_NODES})[^\n]{{0,80}}\b(?:SLURM|Slurm|slurm)\b|\b(?:SLURM|Slurm"
        rf"|slurm)\b[^\n]{{0,80}}(?:{_NODES})"
        r"|(?:DeepSpeed|deepspeed|Deepspeed) (?:under|with|on|via|using|in|and|\+) (?:a )?(?:SLURM|Slurm|slurm)\b"
        r"|(?:SLURM|Slurm|slurm) cluster"
        r"|slurm集群|SLURM集群|slurm 集群|SLURM 集群|Slurm集群|Slurm 集群",
        role=Role.FAMILY,
        evidence=("https://github.com/huggingface/accelerate/issues/2246",),
    ),
    Signature(
        id="launcher_unknown",
        title="deepspeed launcher: --launcher names none that it knows, or hosts with different numbers of GPUs",
        what="--launcher takes pdsh, openmpi, mpich, impi, slurm and mvapich. mpich, impi and mvapich want the same "
        "number of GPUs on each host.",
        remedy="One of these names, as deepspeed --help lists them for the release; hosts with the same slots, or "
        "pdsh.",
        pattern=r"NotImplementedError: Unknown launcher |requires same number of devices per node",
    ),
    Signature(
        id="pdsh_args_replaced",
        title="deepspeed launcher: PDSH_SSH_ARGS_APPEND of the environment is replaced",
        what="0.10.2 and 0.10.3 overwrite the variable with --ssh_port; 0.11.0 to 0.14.0 append to it, and fail if it "
        "is not set.",
        remedy="DeepSpeed 0.14.1 or later; or the options in ~/.ssh/config.",
        pattern=r"PDSH_SSH_ARGS_APPEND[^\n]{0,60}(?:replaced|overwritten|overridden|ignored)",
        affects={"deepspeed": ">=0.10.2,<0.14.1"},
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4370", *pull(5318)),
    ),
    Signature(
        id="name_of_host_unknown",
        title="the name of a host does not resolve",
        what="Most likely MASTER_ADDR (or a name in the hostfile) is a name that this host does not know: a pod or "
        "container without that service, a short name, or an empty variable. A name of the internet (huggingface.co): "
        "this host is not connected to it.",
        remedy="getent hosts NAME on each host; the IP address instead of the name; /etc/hosts.",
        pattern=r"socket\.gaierror: \[Errno -?\d+\]|gai error: -?\d+|Name or service not known"
        r"|Temporary failure in name resolution",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="port_is_a_string",
        title="the port is a string, not a number",
        what="accelerate or a framework that calls it got main_process_port (MASTER_PORT) as text, quoted in a config "
        "or straight from the environment.",
        remedy="main_process_port: 29500 without quotes; int(os.environ['MASTER_PORT']); a newer release of the "
        "package that passes it.",
        pattern=r"connect_ex\(\(\"localhost\", port\)\)[\s\S]{0,200}'str' object cannot be interpreted as an integer",
        evidence=("https://github.com/ray-project/ray/issues/38158",),
    ),
    Signature(
        id="without_launcher",
        title="DeepSpeed in a notebook, or in a script that no launcher starts",
        what="deepspeed.initialize makes a process group also for one GPU, from RANK, LOCAL_RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT. A launcher sets them; without them DeepSpeed asks MPI by mpi4py.",
        remedy="deepspeed train.py, or torchrun. In a notebook, or with python and one GPU: RANK=0, LOCAL_RANK=0, "
        "WORLD_SIZE=1, MASTER_ADDR=localhost, MASTER_PORT=29500 in os.environ before; mpi4py is not needed then.",
        pattern=phrases(
            "w/o |without ", "a launcher|any launcher|the launcher|deepspeed launcher|the deepspeed launcher|mpi4py"
        )
        + "|Forcing RANK|forcing me to have RANK|with no launcher|"
        + phrases("DeepSpeed|deepspeed", " in ", "a notebook|notebooks|Jupyter|jupyter|a Jupyter|a jupyter|Notebook"),
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/748",),
    ),
    Signature(
        id="one_visible_gpu_per_rank",
        title="each rank sees one GPU only, and its local rank is taken for the GPU's number",
        what="DeepSpeed uses the GPU with the number LOCAL_RANK. Where the scheduler shows each process its own GPU "
        "alone (--gpus-per-task, gpu-bind), that GPU is number 0 in every process.",
        remedy="Let all processes of a node see all of its GPUs (--gpus-per-node, --gpu-bind=none, one task per node "
        "with torchrun); or start each process with LOCAL_RANK=0.",
        pattern=r"--gpus-per-task[^\n]{0,80}(?:fail|error|only|visible|ordinal)|only (?:has )?one visible GPU"
        r"|one visible GPU per",
        role=Role.POSSIBLE,
        evidence=("https://github.com/ORNL/HydraGNN/pull/268",),
    ),
    Signature(
        id="local_rank_is_minus_one",
        title="the local rank is -1 and is used as a GPU's number",
        what="-1 is the default of --local_rank, and of the engine's local_rank in old releases, where nothing was "
        "passed: the script was not started by the deepspeed launcher, or by torchrun, which only sets LOCAL_RANK.",
        remedy="int(os.environ['LOCAL_RANK']), or engine.device, instead of the argument; start with deepspeed or "
        "torchrun.",
        pattern=r"Device index must not be negative|device=-1, num_gpus=|Invalid device id: -1",
        role=Role.GENERAL,
        evidence=("https://github.com/Azure/azureml-examples/issues/346",),
    ),
    Signature(
        id="first_collective_timed_out",
        title="rank 0 did not come to the first collective before the timeout",
        what="The other ranks wait for what rank 0 sends at its first NCCL call. Most likely it is still busy: it "
        "alone prepares the data (tokenising under main_process_first), downloads or loads a large model. Otherwise it "
        "has failed or hangs (its own log).",
        remedy="Prepare the data before, in a job of its own, so that the ranks find them in the cache; more processes "
        "for it (preprocessing_num_workers); a longer timeout: ddp_timeout (transformers), "
        "deepspeed.init_distributed(timeout=timedelta(hours=2)). If rank 0 failed, its first error.",
        pattern=r"ncclUniqueId from \[0\][^\n]*(?:Socket Timeout|[Tt]imed? ?out|wait timeout)",
        role=Role.GENERAL,
    ),
    Signature(
        id="launcher_without_other_hosts",
        title="several nodes are meant, and the deepspeed launcher started this one only",
        what="WORLD INFO DICT has localhost alone: the launcher got no hostfile. It reads neither SLURM's list of "
        "nodes nor accelerate's num_machines; accelerate launch starts it, with pdsh by default, and passes on the "
        "hostfile.",
        remedy="deepspeed --hostfile PATH, accelerate launch --deepspeed_hostfile PATH (a line HOST slots=N for each). "
        "Without pdsh, as under SLURM: the same command on each node (srun, one task per node) by torchrun, or by "
        "accelerate with deepspeed_multinode_launcher standard, machine_rank and the first node's address. Warnings "
        "of variables that are skipped are harmless.",
        pattern=r"(?:[Mm]ulti[- ]?[Nn]ode|(?:two|2|several|multiple) nodes|num_machines\W{1,4}(?:[2-9]|\d\d))"
        r"[\s\S]{0,3000}"
        r"WORLD INFO DICT: \{'localhost': \[[\d, ]*\]\}"
        r"|WORLD INFO DICT: \{'localhost': \[[\d, ]*\]\}[\s\S]{0,1500}(?:[Mm]ulti[- ]?[Nn]ode|SLURM_JOB_NUM_NODES"
        r"|num_machines\W{1,4}(?:[2-9]|\d\d))",
        role=Role.POSSIBLE,
    ),
)
