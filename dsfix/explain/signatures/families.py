"""What errors of a kind usually mean, for messages that nothing else recognises."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="module_not_installed",
        title="a module is not installed in this environment",
        what="The Python that runs the job does not find it: not installed, installed for another Python, or (a "
        "module of the project itself) the job was started in another directory. For a submodule: the installed "
        "release of the package does not have it.",
        remedy="python -m pip install the package, with the job's python; for a module of the project PYTHONPATH or "
        "its directory.",
        pattern=r"ModuleNotFoundError: No module named|requires the following packages that were not found",
        role=Role.FAMILY,
    ),
    Signature(
        id="name_not_in_package",
        title="a package does not have a name that another one imports",
        what="The installed releases of the two packages do not fit each other; the name was added later, or removed. "
        '"partially initialized module": most likely a file of the project has the name of the package.',
        remedy="Upgrade the package that imports, or install the release of the other one that it requires (its "
        "requirements file).",
        pattern=r"cannot import name ['`\"]?\w|module ['`\"][\w.]+['`\"] has no attribute ['`\"]",
        role=Role.FAMILY,
    ),
    Signature(
        id="shared_library_missing",
        title="a shared library is not found",
        what="A compiled module needs a library of another CUDA version (libcudart.so.11.0, libcusparse.so.12), or "
        "one of the system that is not installed or not in the linker's path.",
        remedy="Reinstall the compiled package for torch's CUDA version; or add the directory of the library to "
        "LD_LIBRARY_PATH. GLIBC or GLIBCXX: a newer libstdc++ (conda install libstdcxx-ng) or a wheel for this system.",
        pattern=r"(?<!libnccl-net\.so: )(?<!libnccl-tuner\.so: )cannot open shared object file"
        r"|Could not load library lib|version `GLIBC(?:XX)?_[\d.]+' not found",
        role=Role.FAMILY,
    ),
    Signature(
        id="argument_missing",
        title="an argument is missing",
        what="The caller was written for another release of the function; or, for a scheduler or an optimizer that a "
        "config names, its params lack one (total_num_steps of WarmupDecayLR, cycle_min_lr of OneCycle).",
        remedy="Releases that fit each other; for a config add the key: `python -m dsfix check CONFIG`.",
        pattern=r"TypeError: [^\n]*missing \d+ required (?:positional|keyword-only) argument"
        r"|takes (?:from )?\d[^\n]*? positional arguments? but \d+ (?:was|were) given"
        r"|got multiple values for (?:keyword )?argument",
        role=Role.FAMILY,
    ),
    Signature(
        id="no_permission",
        title="a file or directory may not be written or read",
        what="In containers and on clusters most likely a cache in a home directory that belongs to another user or "
        "is read-only (~/.cache, ~/.triton), or an output directory of another user.",
        remedy="HF_HOME, TRITON_CACHE_DIR, TORCH_EXTENSIONS_DIR, TMPDIR in a directory of your own.",
        pattern=r"PermissionError: \[Errno 13\]|Read-only file system",
        role=Role.FAMILY,
    ),
    Signature(
        id="json_invalid",
        title="a JSON file is invalid or empty",
        what="Most likely the DeepSpeed config has a comma too many, a comment or another syntax error, or a file was "
        "saved incompletely (trainer_state.json, an index of weights).",
        remedy="`python -m dsfix check CONFIG` names the line of a config; `python -m json.tool FILE` that of any "
        "file.",
        pattern=r"JSONDecodeError: |HjsonDecodeError|Expecting value: line \d+ column",
        role=Role.FAMILY,
    ),
    Signature(
        id="devices_differ",
        title="tensors on different devices",
        what="Two GPUs: most likely device_map, or a rank that does not use the GPU of its local rank (chosen by an "
        "index, inputs on cuda:0). A GPU and the CPU: inputs or a buffer that were not moved, a module "
        "that the engine does not know, offloaded parameters that are used outside of their hooks, or a bug of "
        "DeepSpeed's offload (0.14.1, 0.14.2).",
        remedy="No device_map; GPUs chosen by CUDA_VISIBLE_DEVICES or --include only; inputs .to(engine.device); "
        "modules registered before deepspeed.initialize; another release if the traceback ends in "
        "deepspeed/runtime/zero.",
        pattern=r"Expected all tensors to be on the same device",
        role=Role.FAMILY,
    ),
    Signature(
        id="file_not_found",
        title="a file does not exist",
        what="A path is relative to another directory, or exists on another host only; nvcc: CUDA_HOME names a "
        "directory without the toolkit's compiler.",
        remedy="Absolute paths; the same files on every host; for nvcc install the toolkit or correct CUDA_HOME.",
        pattern=r"FileNotFoundError: (?:\[Errno 2\] )?No such file or directory(?!: '\S*\.triton)",
        role=Role.FAMILY,
    ),
    Signature(
        id="too_many_resources",
        title="a kernel asks for more registers or threads than a block may have on this GPU",
        what="The kernel's registers times its threads per block exceed the GPU's. Most likely a kernel that was "
        "written or compiled for another GPU, or a size beyond what it is made for: through 0.7.3 the softmax of "
        "DeepSpeed's inference kernels runs in blocks of 1024 threads, and fails so with sequences over 1024.",
        remedy="Inference kernels: DeepSpeed 0.7.4 or later, or sequences of at most 1024. Otherwise compile the "
        "operator again on the machine that runs it, or without that kernel; CUDA_LAUNCH_BLOCKING=1 names the line.",
        pattern=r"too many resources requested for launch",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/1125",),
    ),
    Signature(
        id="cuda_error",
        title="an error of CUDA that is reported late",
        what="Kernels run asynchronously: the traceback may point to a later line. Most likely an index out of range, "
        "memory that is full, a compiled module that does not fit torch or the GPU, or a fault of the GPU "
        "(`nvidia-smi`, `dmesg`: Xid).",
        remedy="CUDA_LAUNCH_BLOCKING=1 names the line.",
        pattern=r"RuntimeError: CUDA error: |torch\.AcceleratorError: CUDA error"
        r"|CUDA kernel errors might be asynchronously reported",
        role=Role.FAMILY,
    ),
    Signature(
        id="assertion_of_swapping",
        title="offloading parameters: a parameter is swapped in twice",
        what="NVMe offload of parameters met one that is still in use: gradient checkpointing or a second use of a "
        "module in one pass.",
        remedy="offload_param to the CPU instead of NVMe; no gradient checkpointing; a current DeepSpeed.",
        pattern=r"already assigned swap buffer|already assigned swap in buffer|has already been assigned a swap buffer",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/4072",),
    ),
    Signature(
        id="installation_failed",
        title="a package could not be installed from source",
        what="Its setup.py failed; the reason is in the lines above. DeepSpeed: most likely torch is not installed "
        "yet (or not visible to pip's or uv's isolated build, which has no setuptools either), DS_BUILD_… asks for "
        "operators that cannot be compiled here, a CUDA toolkit of another version, or Windows, where only some "
        "releases of Python have a wheel.",
        remedy="Install torch, setuptools, wheel and ninja first, then pip install deepspeed --no-build-isolation (uv: "
        "--no-build-isolation-package deepspeed), without DS_BUILD_…; Windows: WSL 2 or a wheel. If a project only "
        "offers DeepSpeed as an extra, leave it out.",
        pattern=r"subprocess-exited-with-error|metadata-generation-failed"
        r"|Getting requirements to build wheel(?: did not run|: finished with status 'error')|Failed building "
        r"wheel for|pip install deepspeed failed|build backend returned an error"
        r"|Failed to build `?deepspeed|Preparing metadata \(\S+\) did not run|python setup\.py (?:egg_info"
        r"|bdist_wheel) "
        r"did not run|Failed to build installable wheels",
        role=Role.POSSIBLE,
        evidence=(
            "https://github.com/deepspeedai/DeepSpeed/issues/5344",
            "https://github.com/deepspeedai/DeepSpeed/pull/4468",
        ),
    ),
    Signature(
        id="torch_not_there",
        title="this Python has no torch",
        what="While pip or uv installs a package from source: most likely they build in an environment of their own, "
        "in which torch is missing even where it is installed, or torch is not installed yet. In a job: the Python "
        "that runs is another one than that of pip.",
        remedy="Install torch first, then setuptools, wheel and ninja, then pip install --no-build-isolation deepspeed "
        "(uv: --no-build-isolation-package deepspeed). In a job: which python, python -m pip show torch.",
        pattern=r"No module named 'torch'(?!\.)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5344",),
    ),
    Signature(
        id="path_is_none",
        title="a path is None",
        what="While an operator is compiled: most likely CUDA_HOME is not set and no toolkit was found. Otherwise an "
        "argument or a variable for a path is missing.",
        remedy="Install the CUDA toolkit and set CUDA_HOME on every host; or give the path.",
        pattern=r"expected str, bytes or os\.PathLike object, not NoneType|os\.PathLike object",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5374",),
    ),
    Signature(
        id="job_hangs",
        title="the job hangs",
        what='At "Using … as PyTorch extensions root" or "Loading extension module": a lock of a process that was '
        "killed while compiling. In the first collective: the network, P2P between GPUs. Later: the ranks have "
        "diverged (MoE or images with ZeRO-3, different numbers of batches, saving or evaluating on rank 0 only).",
        remedy="py-spy dump --pid PID on each rank shows where; remove ~/.cache/torch_extensions/*/*/lock; "
        "NCCL_DEBUG=INFO; NCCL_P2P_DISABLE=1; call save_checkpoint on all ranks; MoE: "
        "deepspeed.utils.set_z3_leaf_modules.",
        pattern=r"[Dd]eep[Ss]peed hangs|hangs during|training hang|hang and timeout|hang forever|hangs forever"
        r"|(?:gets stuck|get stuck|got stuck)(?! (?:with|on|in|at|by) (?:this|these|an?|the|some) (?:following )?"
        r"(?:error|issue|problem|bug)| in(?:to)? (?:an? )?(?:infinite|endless) loop)"
        r"|stuck after|stuck during|stuck while|hang when|hangs in |hang after"
        r"|hangs after"
        r"|is stuck at|stuck at the "
        r"beginning|stuck when|hangs at |hangs when|hang at |hang while|hangs on |hangs while"
        r"|hangs before|hung at |stuck in (?!an? (?:infinite|endless) loop|trying|this (?:error|issue|problem))"
        r"|Stuck in |Gets Stuck|Training stuck"
        r"|training stuck|DeepSpeed stuck"
        r"|DeepSpeed Stuck|Deepspeed stuck"
        r"|deepspeed stuck|no progress|hanging at|hangs indefinitely|stuck indefinitely|hangs randomly"
        r"|卡住不动|卡着不动|卡在那|一直卡住|一直卡在|卡死在|训练卡住|训练卡死|训练会卡|会卡住|卡在了|卡住了"
        r"|程序卡住|进程卡住|不动了| hang住|时hang住|会hang住|就hang住|都hang住"
        r"|stucked when|stucked at|stucked in|stucked during|will hung"
        r"|stuck on (?!this|how|an? (?:error|issue|problem)|the (?:error|issue|problem|following))|stuck before"
        r"|hang before|hangs on$|(?<!slowdowns or )hanging when|hanging during|hanging after|hang in the"
        r"|一直等待|没有反应",
        role=Role.FAMILY,
    ),
    Signature(
        id="attribute_missing",
        title="an object does not have an attribute",
        what="'NoneType': something was not created, or a function returned nothing (a model that was not prepared, "
        "an optional package). Otherwise most likely code and package of releases that do not fit each other, or a "
        "wrapper (an engine, an adapter) where the model is expected.",
        remedy="Upgrade the package that the last lines of the traceback belong to, or install the releases that the "
        "project requires; engine.module or accelerator.unwrap_model(model) for the model.",
        pattern=r"object has no attribute ['`\"]?(?!ds_opt_|ds_grads_remaining)\w",
        role=Role.FAMILY,
    ),
    Signature(
        id="ray_actor_died",
        title="an actor of Ray died; the reason is in its own log",
        what="Ray reports what it sees from outside. Most likely the host's memory is full (Ray or the kernel kills "
        "the process), an error while the actor imports, compiles or loads its model, or a crash in compiled code "
        "(vLLM, flash attention, NCCL).",
        remedy="/tmp/ray/session_latest/logs: worker-…-PID.err and .out of the actor that died first; `dmesg | tail`; "
        "`ray memory`; fewer models per host.",
        pattern=r"ActorDiedError|RayActorError|actor died unexpectedly|ActorUnavailableError|WorkerCrashedError",
        role=Role.FAMILY,
    ),
    Signature(
        id="sizes_are_zero",
        title="a weight has the shape [0]: ZeRO-3 has partitioned it",
        what="from_pretrained and zero.Init partition the weights while a ZeRO-3 config is active, also those of "
        "models that are only used. Outside of its module's own call a parameter is an empty placeholder; its size is "
        "in ds_shape. The weights are there.",
        remedy="deepspeed.zero.GatheredParameters(params) around what reads or changes them, on all ranks "
        "(modifier_rank=0 to change); call the module itself instead of using its weight. To load a model whole, make "
        "it before TrainingArguments or HfDeepSpeedConfig, or outside of zero.Init.",
        pattern=r"(?:[Dd]eep[Ss]peed|[Zz][Ee][Rr][Oo]|[Ss]tage ?3)[\s\S]{0,1200}(?:torch\.Size\(\[0\]\)"
        r"|torch\.Size\(\[\]\)|tensor of size zero|tensors of size zero|tensor of size 0|shape is \[0\]"
        r"|shape \[0\]|size of \[0\])",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/5227",),
    ),
    Signature(
        id="too_many_files",
        title="too many open files",
        what="The limit of open files is reached: DataLoader workers that share tensors through files, many ranks, "
        "offloading to NVMe.",
        remedy="ulimit -n 65536; torch.multiprocessing.set_sharing_strategy('file_system'); fewer workers.",
        pattern=r"Too many open files|received 0 items of ancdata",
        role=Role.GENERAL,
    ),
    Signature(
        id="sizes_differ",
        title="two tensors have sizes that do not fit",
        what="Most likely inputs of different lengths, a mask or positions that were made for another length, or a "
        "model that was changed on one side (vocabulary, heads). With DeepSpeed also: tensor parallelism or the "
        "hybrid engine, which shard a layer without its counterpart, LoRA that is merged into partitioned weights, "
        "and sequence parallelism.",
        remedy="Try without tensor and sequence parallelism and without the hybrid engine; compare the shapes in the "
        "last lines of the traceback with the model on one GPU.",
        pattern=r"The size of tensor a \(\d+\) must match the size of tensor b"
        r"|shape '\[[^\n]*\]' is invalid for input of size"
        r"|Sizes of tensors must match except in dimension|The expanded size of the tensor",
        role=Role.FAMILY,
    ),
    Signature(
        id="hub_not_reachable",
        title="a model or data set is not found, and the hub is not reachable",
        what="The name is not a local directory (a typo, another working directory, another host), and the hub cannot "
        "be reached, or needs a token.",
        remedy="An absolute path to a complete directory; HF_ENDPOINT, HF_TOKEN; download once and set "
        "HF_HUB_OFFLINE=1.",
        pattern=r"is not a local folder and is not a valid model identifier|couldn't connect to 'https://"
        r"|LocalEntryNotFoundError"
        r"|Repo id must be in the form|is not a valid model identifier listed",
        role=Role.FAMILY,
    ),
    Signature(
        id="value_is_none",
        title="a value is None where something else is expected",
        what="With DeepSpeed most likely a step or a hook without what an earlier call should have made: gradients (a "
        "step without engine.backward, two steps for one backward pass), an optimizer or a scheduler that neither the "
        "config nor the script gives, an output that the model does not return.",
        remedy="The last lines of the traceback name the value; look where it should have been set. In a calculation "
        "it is most likely a number that the config leaves out or sets to null: write it (batch sizes, buffer sizes).",
        pattern=r"'NoneType' object is not (?:iterable|subscriptable|callable)"
        r"|unsupported operand type\(s\) for \S+: '(?:NoneType' and '|\w+' and 'NoneType')"
        r"|'NoneType' object cannot be interpreted as an integer"
        r"|not supported between instances of '(?:NoneType' and '|\w+' and 'NoneType')",
        role=Role.FAMILY,
    ),
)
