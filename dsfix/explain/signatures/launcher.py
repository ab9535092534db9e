"""Starting the ranks: the deepspeed launcher, ssh, ports, the variables that name a rank."""

from __future__ import annotations

from ..phrases import phrases
from ..signature import Role, Signature, pull

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
        pattern=r"launcher '\w+' not installed|pdsh: command not found|No such file or directory: 'pdsh'",
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
        "torchrun "
        "--master_port, accelerate launch --main_process_port with CUDA_VISIBLE_DEVICES.",
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
        r"|ncclInternalError|ncclRemoteError|ncclInvalidUsage|NCCL Error \d",
        role=Role.POSSIBLE,
    ),
    Signature(
        id="nccl_shared_memory",
        title="NCCL gets no shared memory: /dev/shm is too small",
        what="The ranks of a host exchange data through /dev/shm, of which a container has 64 MB by default.",
        remedy="docker run --shm-size=16g or --ipc=host (Kubernetes: an emptyDir of medium Memory at /dev/shm); `df -h "
        "/dev/shm` while it runs. NCCL_SHM_DISABLE=1 does without it, slower.",
        pattern=r"Error while creating shared memory segment|Call to (?:posix_fallocate|shm_open) failed",
        evidence=("https://github.com/huggingface/transformers/issues/11658",),
    ),
    Signature(
        id="rendezvous_failed",
        title="the ranks do not find each other",
        what="A rank cannot reach MASTER_ADDR:MASTER_PORT, or not all ranks arrive. Most likely: the address is wrong "
        "or not reachable from that host (a firewall, a container, a host name that resolves to 127.0.1.1), the "
        "number of ranks or nodes is larger than what was started, or rank 0 has failed (its log).",
        remedy="Start with the address of rank 0's network interface and an open port; the same number of nodes "
        "everywhere; `nc -vz ADDR PORT` from the other hosts while rank 0 waits.",
        pattern=r"client socket has failed to connect|client socket has timed out|Socket Timeout"
        r"|wait timeout after \d+ms"
        r"|timed out after \d+ ?(?:seconds|ms)? ?waiting for clients|RendezvousTimeoutError|RendezvousConnectionError"
        r"|Timed out initializing process group",
        role=Role.POSSIBLE,
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
        "write "
        "UUIDs (GPU-…, MIG-…), and an empty or a quoted list fails as well.",
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
        "activate "
        "the environment there, or leave out the option that needs it.",
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
        "host "
        "does not have, or another MPI there.",
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
        "the "
        "host's name. 127: the command was not found there; 1: most likely the script.",
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
        id="rank_illegal_instruction",
        title="exit code -4: a rank executed an instruction that this CPU does not have (SIGILL)",
        what="Most likely an operator was compiled on another CPU (AVX512), in a cache that several machines share, or "
        "in an image; or a package is built for newer CPUs.",
        remedy="Remove ~/.cache/torch_extensions, or one TORCH_EXTENSIONS_DIR per kind of machine; DS_BUILD_OPS=0 when "
        "installing in an image.",
        pattern=r"return code ?=? ?-4\b|exitcode\s*: -4\b|Signal 4 \(SIGILL|Illegal instruction|<Signals\.SIGILL: 4>",
        role=Role.POSSIBLE,
    ),
)
