"""accelerate's DeepSpeedPlugin, the keys of its YAML file, and accelerate launch."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="zero3_init_flag",
        names=("zero3_init_flag",),
        beside=("loading + oom", "loading + host", "zero-3 + host"),
        title="zero3_init_flag: whether models are partitioned while they are made",
        what="Through accelerate 0.34 true lets transformers' from_pretrained partition models while they are "
        "made (zero.Init), once an Accelerator or TrainingArguments exists; since 1.0 each ZeRO-3 config "
        "does, whatever the flag. Models that were made before, by other libraries, or with a "
        "quantization config are whole on each rank until prepare.",
        remedy="true for ZeRO-3, and the Accelerator (TrainingArguments) before the model.",
        evidence=("accelerate.utils.dataclasses.DeepSpeedPlugin.set_deepspeed_weakref",),
    ),
    Fact(
        id="zero_init_not_disabled",
        names=(
            "zero3_init_context_manager",
            "is_zero3_init_enabled",
            "deepspeed_zero_init_disabled_context_manager",
            "ACCELERATE_DEEPSPEED_ZERO3_INIT",
        ),
        beside=(
            "several models",
            "zero-3",
            "loading",
            "empty",
            "oom",
            "how",
        ),
        title="accelerate 1.0 and later: zero.Init is not disabled by zero3_init_context_manager(enable=False)",
        what="Within it, and with zero3_init_flag false, from_pretrained still partitions under ZeRO-3: the "
        "plugin gives transformers its config either way. Models that are to stay whole (reward models, "
        "text encoders) are empty then. accelerate.utils.GatheredParameters, on the other hand, does "
        "nothing while the flag is false.",
        remedy="transformers.integrations.deepspeed.unset_hf_deepspeed_config() before the model is loaded, and "
        "HfDeepSpeedConfig(config), kept in a variable, after it; deepspeed.zero.GatheredParameters; or "
        "ZeRO-2.",
        affects={"accelerate": ">=1.0"},
        evidence=("accelerate.utils.dataclasses.DeepSpeedPlugin.set_deepspeed_weakref",),
    ),
    Fact(
        id="config_file_of_accelerate",
        names=(
            "deepspeed_config_file",
            "ACCELERATE_CONFIG_DS_FIELDS",
            "_deepspeed_config_checks",
            "accelerate/utils/dataclasses.py:_deepspeed_config_checks",
        ),
        beside=(
            "accumulation + differs",
            "fp16 + differs",
            "bf16 + differs",
            "micro-batches + fails",
        ),
        title="accelerate: deepspeed_config_file and the YAML's other keys",
        what="With a file, the stage, offload, clipping, accumulation, zero3_save_16bit_model and mixed_precision "
        "of the YAML must not be set as well; what the script passes as mixed_precision has to agree with the "
        "file's fp16 and bf16. Without a file accelerate makes a config of its own: stage 2, and no optimizer or "
        "scheduler.",
        remedy="Under deepspeed_config only deepspeed_config_file, zero3_init_flag and the launcher's keys; "
        '"auto" in the file for what the script says.',
        evidence=("accelerate.utils.dataclasses.DeepSpeedPlugin._deepspeed_config_checks",),
    ),
    Fact(
        id="plugin_of_accelerate",
        names=(
            "DeepSpeedPlugin",
            "deepspeed_plugins",
            "hf_ds_config",
            "ACCELERATE_USE_DEEPSPEED",
            "state.deepspeed_plugin",
        ),
        title="accelerate: when a DeepSpeedPlugin is used",
        what="It counts for the first Accelerator of a process; state.deepspeed_plugin is None if the script "
        "was started by python without ACCELERATE_USE_DEEPSPEED and got no plugin, or if the YAML's "
        "distributed_type is not DEEPSPEED. What is not given comes from the environment, the stage as 2, "
        'batch size and accumulation as "auto".',
        remedy="Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=FILE)) before anything else of accelerate, "
        "or accelerate launch --use_deepspeed; the Trainer takes TrainingArguments(deepspeed=…) instead.",
        evidence=("accelerate.Accelerator.__init__",),
    ),
    Fact(
        id="precision_of_accelerate",
        names=(
            "mixed_precision",
            "accelerator.autocast",
            "set_mixed_precision",
            "ACCELERATE_MIXED_PRECISION",
        ),
        beside=(
            "nan",
            "fp16 + loss",
        ),
        title="accelerate: mixed_precision under DeepSpeed casts the whole model",
        what="It enables fp16 or bf16 of the DeepSpeed config and must not contradict it. The engine then "
        "casts all weights; there is no autocast and no GradScaler, so that inputs (unless fp16.auto_cast "
        "is on) and tensors made inside the model need the same dtype, and models trained by autocast "
        "elsewhere (normalisation in fp32) may give nan in fp16.",
        remedy="bf16 where the GPU has it; inputs.to(dtype of the weights); torch_autocast of newer DeepSpeed if "
        "autocast is wanted; mixed_precision and the config alike.",
        evidence=("accelerate.utils.dataclasses.DeepSpeedPlugin.set_mixed_precision",),
    ),
    Fact(
        id="launch_on_several_machines",
        names=(
            "deepspeed_multinode_launcher",
            "deepspeed_hostfile",
            "machine_rank",
            "num_machines",
            "deepspeed_inclusion_filter",
            "main_process_ip",
        ),
        beside=(
            "nodes + hang",
            "nodes + connection",
            "nodes + how",
        ),
        title="accelerate launch on several machines with DeepSpeed",
        what="num_processes is the number of all machines together. deepspeed_multinode_launcher: pdsh (the "
        "default) is started on one machine only, with a hostfile and ssh without password; standard is "
        "started on every machine with its own machine_rank, and needs main_process_ip and a port that "
        "the others reach.",
        remedy="standard where each machine gets its own command (Slurm, Kubernetes), the same YAML but for "
        "machine_rank; NCCL_SOCKET_IFNAME for the interface; same paths and packages on all.",
        evidence=("accelerate.utils.launch.prepare_deepspeed_cmd_env",),
    ),
    Fact(
        id="port_of_accelerate",
        names=("main_process_port",),
        beside=(
            "connection",
            "launcher",
            "hang + start",
            "several models",
        ),
        title="accelerate launch: main_process_port",
        what="Without it 29500 is used: two jobs on one machine collide, and the second one fails, hangs, or "
        "is moved to a free port in recent releases. With several machines the port has to be free on the "
        "first and open for the others. Through accelerate 0.12 it is ignored with DeepSpeed on a single machine.",
        remedy="--main_process_port with a number for each job; in recent releases 0 chooses a free one on a single "
        "machine. accelerate 0.12 or earlier: a newer one, or `deepspeed --master_port PORT`.",
        evidence=("accelerate.utils.launch.prepare_deepspeed_cmd_env",),
    ),
    Fact(
        id="offload_keys_of_accelerate",
        names=("offload_param_device",),
        beside=(
            "offload + slow",
            "offload + oom",
            "offload + host",
            "nvme + fails",
        ),
        title="accelerate: offload_param_device",
        what="It counts with ZeRO-3 only, while offload_optimizer_device counts with ZeRO-1 and 2 as well, and nvme "
        "with ZeRO-3. The weights are then moved to the GPU in every pass, which is slow.",
        remedy="none if the GPUs have room; cpu for the optimizer first, for the parameters only if that is not "
        "enough; a larger micro-batch makes the moving cost less.",
        evidence=("accelerate.utils.dataclasses.DeepSpeedPlugin",),
    ),
    Fact(
        id="leaf_modules_of_accelerate",
        names=(
            "transformer_moe_cls_names",
            "deepspeed_moe_layer_cls_names",
            "set_moe_leaf_modules",
            "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
        ),
        title="accelerate: which blocks of experts ZeRO-3 takes as one",
        what="The named classes are made leaf modules, whose weights are gathered at once, so that ranks may "
        "use different experts. Without it ZeRO-3 hangs in models of transformers with experts; with it a "
        "whole block of experts has to fit the GPU. It needs DeepSpeed 0.14, and the class's exact name.",
        remedy="deepspeed_moe_layer_cls_names: MixtralSparseMoeBlock (the block, not the layer); or "
        "deepspeed.utils.set_z3_leaf_modules(model, [Class]) before prepare.",
        evidence=("accelerate.utils.dataclasses.DeepSpeedPlugin.set_moe_leaf_modules",),
    ),
    Fact(
        id="notebooks_of_accelerate",
        names=(
            "notebook_launcher",
            "debug_launcher",
        ),
        title="notebook_launcher and DeepSpeed",
        what="notebook_launcher starts processes without the DeepSpeed environment that accelerate launch "
        "sets, and fails if CUDA was used in the notebook before. In a notebook without a launcher "
        "DeepSpeed sees one rank.",
        remedy="The script by `!accelerate launch --use_deepspeed script.py` or `!deepspeed script.py`; for one "
        "GPU set MASTER_ADDR, MASTER_PORT, RANK, LOCAL_RANK and WORLD_SIZE.",
        evidence=("accelerate.launchers.notebook_launcher",),
    ),
    Fact(
        id="ema_of_partitions",
        names=("EMA", "EMAModel", "use_ema", "enable_ema", "ema_params"),
        beside=(
            "zero-3",
            "empty",
            "fails",
            "saving",
            "hang",
            "oom",
            "memory",
        ),
        title="moving averages of weights under DeepSpeed",
        what="An average that is kept beside the engine copies parameters: under ZeRO-3 these are empty unless "
        "they are gathered, and a copy of the whole model on each rank costs what ZeRO saves. Under "
        "ZeRO-1 and 2 it sees fp16 or bf16 weights, in which small updates vanish.",
        remedy="Under ZeRO-3 GatheredParameters for each update, on all ranks, with the average on the CPU; "
        "ZeRO-2 and averages in fp32 (deepspeed.utils.safe_get_full_fp32_param).",
        evidence=("deepspeed.runtime.zero.partition_parameters.GatheredParameters",),
    ),
)
