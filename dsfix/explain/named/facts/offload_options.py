"""Options of offloading to the CPU, of ZenFlow and SuperOffload."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="of_offload_optimizer_memory",
        names=(
            "offload_optimizer",
            "offload_optimizer_device",
            "cpu_offload",
        ),
        beside=(
            "oom",
            "host",
            "ends",
            "grows",
            "memory",
        ),
        title="offload_optimizer: what it takes on the host, and what it leaves on the GPU",
        what="The fp32 weights, both moments of Adam and the gradients, about 16 bytes per parameter over all ranks, "
        "go to the host, pinned by default since 0.19.5. The GPU keeps the weights (2 bytes per parameter with ZeRO-1 "
        "and 2), the gradients' bucket and all activations. 0.14.1 to 0.16.9 copy the fp32 weights to the GPU in each "
        "step with ZeRO-1 and 2.",
        remedy='A host with that much memory, "pin_memory": false, more hosts; on the GPU a smaller micro-batch, '
        "gradient checkpointing, ZeRO-3 with offload_param; DeepSpeed 0.17.0 or later.",
        patches=("zero12_offload_weights_on_gpu",),
        evidence=("deepspeed.runtime.zero.stage_1_and_2",),
    ),
    Fact(
        id="of_offload_optimizer_speed",
        names=(
            "offload_optimizer",
            "offload_optimizer_device",
            "cpu_offload",
        ),
        beside=(
            "slow",
            "lower",
            "unused",
        ),
        title="offload_optimizer: the step runs on the CPU",
        what="Each step moves gradients to the host and weights back, and Adam runs on the CPU's cores, divided "
        "among the ranks; the GPU waits meanwhile. ZeRO-3 in half precision casts gradients on the CPU through 0.15.3, "
        "up to 80 times slower. OMP_NUM_THREADS=1, which torchrun sets, leaves each rank one core.",
        remedy='No offload if it fits; more gradient_accumulation_steps (fewer steps), "pin_memory": true, '
        "OMP_NUM_THREADS=cores / ranks, --bind_cores_to_rank of the deepspeed launcher; DeepSpeed 0.16.3 or later.",
        patches=("zero3_offload_gradients_cast_on_cpu",),
        evidence=("deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam",),
    ),
    Fact(
        id="of_offload_optimizer_choice",
        names=(
            "offload_optimizer",
            "cpu_offload",
        ),
        beside=(
            "fails",
            "how",
        ),
        title="offload_optimizer: which optimizers it takes, and that its operator must be compiled",
        what="With Adam or AdamW in the config it is DeepSpeedCPUAdam, whose operator is compiled on first use "
        "(compiler, CUDA toolkit of torch's version, ninja). An optimizer of the script is refused unless "
        "zero_force_ds_cpu_optimizer is false, or it is DeepSpeedCPUAdam (current accelerate replaces torch's Adam by "
        "it); FusedAdam and other CUDA optimizers cannot run on the CPU. Stages 1, 2 and 3 support it; NVMe needs "
        "ZeRO-3.",
        remedy='"optimizer": {"type": "AdamW", "params": …} in the config, and no optimizer of your own; '
        "ds_report's line cpu_adam.",
        evidence=("deepspeed.runtime.engine.DeepSpeedEngine._configure_optimizer",),
    ),
    Fact(
        id="of_offload_param",
        names=(
            "offload_param",
            "cpu_offload_params",
            "cpu_offload_param",
        ),
        title="offload_param: weights on the CPU or NVMe, with ZeRO-3 only",
        what="With stage 3 only, else it is ignored: large weights are brought to the GPU for each module and dropped "
        "afterwards, so each pass is slower and the GPU stays mostly empty; activations stay there. It applies from "
        "construction on only if the model is made under zero.Init with this config. Pinned host memory is allocated "
        "for trainable weights even with pin_memory false.",
        remedy="Only where offload_optimizer and ZeRO-3 do not suffice; larger micro-batches use the memory that is "
        "left; from_pretrained after TrainingArguments or HfDeepSpeedConfig.",
        evidence=(
            "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3._create_param_groups_fp16_flat_cpu_memory",
        ),
    ),
    Fact(
        id="of_pin_memory",
        names=(
            "pin_memory",
            "offload_optimizer.pin_memory",
            "offload_param.pin_memory",
            "cpu_offload_use_pin_memory",
        ),
        beside=(
            "oom",
            "ends",
            "offload + fails",
        ),
        title="pin_memory: page-locked host memory for offload",
        what="Pinned buffers make transfers fast and cannot be swapped out: more than WSL 2, a container or ulimit -l "
        "allow fails (cudaHostAlloc, invalid argument, out of memory with free memory). The default is false, since "
        "0.19.5 true; ZeRO-3 with offload_param, and NVMe's buffers, are pinned in any case. The key exists in "
        "offload_optimizer and offload_param only, apart from the DataLoader's.",
        remedy='"pin_memory": false in both sections; ulimit -l unlimited (docker: --ulimit memlock=-1); smaller '
        "sub_group_size and buffer_size.",
        evidence=("deepspeed.runtime.zero.offload_config",),
    ),
    Fact(
        id="of_offload_ratio",
        names=(
            "offload_optimizer.ratio",
            "offload_ratio",
            "Twin-Flow",
            "TwinFlow",
            "twin_flow",
            "partial_offload",
        ),
        title="offload_optimizer.ratio (Twin-Flow): a part of the optimizer stays on the GPU",
        what="ZeRO-3 with DeepSpeedCPUAdam only. It divides sub-groups: with one sub-group on a rank (at most "
        "sub_group_size elements, 1e9) any ratio above 0 offloads all of it. The part on the GPU is updated by "
        "torch's AdamW with the learning rate from the start, which a schedule does not reach, and checkpoints lack "
        "its moments.",
        remedy="A sub_group_size of a tenth of a rank's elements or less; dsfix's patch for the learning rate; ratio "
        "1 for a job that is to be resumed.",
        affects={"deepspeed": ">=0.12.3"},
        patches=("twin_flow_rate_never_changes",),
        evidence=("deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3._create_fp32_partitions",),
    ),
    Fact(
        id="of_super_offload",
        names=(
            "super_offload",
            "SuperOffload",
            "cpuadam_cores_perc",
        ),
        title="super_offload: an Adam in a process of its own, for superchips",
        what="Since 0.18.0, with ZeRO-3, offload_optimizer on the CPU, Adam and NVIDIA GPUs: the step runs in another "
        "process on cpuadam_cores_perc of the cores. It is made for GH200 and GB200, whose CPU and GPU are close. "
        "0.18.0 to 0.18.3 fail in deepspeed.initialize (multiple values for argument 'timers').",
        remedy="DeepSpeed 0.18.4 or later; cores bound to the ranks (numactl, --bind_cores_to_rank); plain "
        "offload_optimizer elsewhere.",
        affects={"deepspeed": ">=0.18.0"},
        evidence=("deepspeed.runtime.superoffload.superoffload_stage3",),
    ),
    Fact(
        id="of_zenflow",
        names=(
            "ZenFlow",
            "topk_ratio",
            "full_warm_up_rounds",
            "ZenFlowCPUAdam",
            "ZenFlowSelectiveAdamW",
        ),
        title="ZenFlow: offload that updates important gradients at once",
        what="It needs offload_optimizer on the CPU, Adam or AdamW of the config and torch 2.1, with its own offload "
        "also overlap_comm. update_interval replaces gradient_accumulation_steps of the config; unless "
        'select_strategy is "step", nothing is selected anew without training_data given to deepspeed.initialize. '
        'offload_param fails with it through 0.19.1; a number for select_interval with the strategy "auto" is '
        "refused.",
        remedy='"select_strategy": "step" with numbers for select_interval and update_interval (the first not '
        'smaller), "overlap_comm": true, no offload_param; or no zenflow.',
        affects={"deepspeed": ">=0.17.5"},
        evidence=("deepspeed.runtime.zenflow.engine.configure_zenflow",),
    ),
    Fact(
        id="at_cpu_adam_step",
        names=(
            "deepspeed/ops/adam/cpu_adam.py:step",
            "deepspeed/ops/adam/cpu_adam.py:step_subgroup",
        ),
        title="DeepSpeedCPUAdam's step fails",
        what="Most likely its parameters are on the GPU (the optimizer was made for offload, and the config offloads "
        "nothing), or states that were loaded have another device or dtype than the weights. A job that ends with "
        "signal 4 (illegal instruction) has an operator that was compiled on another CPU.",
        remedy='"offload_optimizer": {"device": "cpu"}, or an optimizer for the GPU; resume with the config that '
        "saved; clear ~/.cache/torch_extensions on another machine.",
        evidence=("deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam.step",),
    ),
)
