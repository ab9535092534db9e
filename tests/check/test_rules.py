"""Every rule of `check`: a config with a finding, and similar ones without."""

import re
from dataclasses import dataclass

import pytest

from dsfix import rules, versions
from dsfix.catalogue import registry
from dsfix.check import checking
from dsfix.check.arguments import checked
from tests.config_words import VerbatimConfig, config_of

NEWEST = "0.19.8"
BATCH = {"train_micro_batch_size_per_gpu": 2}
# One case: rule, config key, [arguments of `check`], config. Indented lines: near misses without the finding;
# `…` extends the case's config, and an empty one is that config with other arguments.
TABLE = r"""
# fp16, bf16, torch_autocast
auto_precision bf16.enabled [0.17.1 plain]: bf16.enabled=auto
  - [] | [0.17.0 plain] | [plain] … fp16.enabled=true | [plain] bf16.enabled=false
auto_precision_taken_for_true bf16.enabled [0.17.0 plain]: bf16.enabled=auto
  - [0.17.1 plain] | [0.17.0 plain] bf16.enabled=true
fp16_and_bf16 fp16.enabled: fp16.enabled=true bf16.enabled=true
  - … fp16.enabled=false | bf16.enabled=auto fp16.enabled=auto
fp16_and_bf16 fp16.enabled [0.17.0 plain]: bf16.enabled=auto fp16.enabled=auto
precision_and_torch_autocast torch_autocast.enabled [0.18.2]: bf16.enabled=true torch_autocast.enabled=true
  - [0.18.3] | [0.18.2] torch_autocast.enabled=true
precision_beside_torch_autocast torch_autocast.enabled [0.18.3]: bf16.enabled=true torch_autocast.enabled=true
  - [0.18.2] | [0.18.3] … bf16.enabled=false
autocast_unscaled_without_zero torch_autocast.dtype [0.17.6]: torch_autocast.enabled=true torch_autocast.dtype=float16
  - [0.17.1] | [0.18.0] | [0.17.6] … zero.stage=1 | [0.17.6] … torch_autocast.dtype=bfloat16
autocast_unscaled_zero3 torch_autocast.dtype [0.17.5]: torch_autocast.enabled=true torch_autocast.dtype=float16
    zero.stage=3
  - [0.17.6] | [0.17.5] … zero.stage=2
bf16_fp32_accumulation_ignored data_types.grad_accum_dtype [0.18.4]: bf16.enabled=true data_types.grad_accum_dtype=fp32
  - [0.17.5] | [0.18.5] | [0.18.4] … zero.stage=1 | [0.18.4] … bf16.enabled=false
loss_scale_under_bf16 bf16.loss_scale [0.17.1]: bf16.enabled=true bf16.loss_scale=0
  - [0.17.0] | [0.17.1] fp16.enabled=true fp16.loss_scale=0
loss_scale_under_bf16 bf16.loss_scale: bf16.enabled=true bf16.loss_scale=0 bf16.hysteresis=2
loss_scale_under_bf16_ignored bf16.loss_scale [0.17.0]: bf16.enabled=true bf16.loss_scale=0
  - [0.17.1]
quoted_precision bf16.enabled [0.17.0]: bf16.enabled="false"
  - [0.17.1] | [0.17.0] bf16.enabled=false
# "auto"
auto_stage zero.stage [plain]: zero.stage=auto
  - [] | [plain] zero.stage=2
auto_number gradient_clipping [plain]: gradient_clipping=auto
  - [] | [plain] gradient_clipping=1.0
auto_number optimizer.params.lr [plain]: optimizer.type=AdamW optimizer.params.lr=auto
  - [plain] adamw
auto_bucket zero.reduce_bucket_size [plain]: zero.stage=2 zero.reduce_bucket_size=auto
  - [] | [plain] … zero.reduce_bucket_size=5e8
auto_unresolved zero.allgather_bucket_size: zero.stage=2 zero.allgather_bucket_size=auto gradient_clipping=auto
  - zero.stage=2 zero.reduce_bucket_size=auto gradient_clipping=auto | pipeline.stages=auto gradient_clipping=auto
  - data_types.keep_in_fp32_modules=auto gradient_clipping=auto | zero.stage=2 zero.allgather_bucket_size=auto
auto_perhaps_unresolved zero.allgather_bucket_size: zero.stage=2 zero.allgather_bucket_size=auto
  - … gradient_clipping=auto | [plain] | zero.stage=3 zero.stage3_max_live_parameters=auto zero.offload_param.device=cpu
auto_perhaps_unresolved zero.stage3_max_live_parameters: zero.stage=3 zero.stage3_max_live_parameters=auto
    zero.offload_param.device=cpu adamw
  - zero.stage=3 zero.stage3_max_live_parameters=1e9
# the batch
no_batch_size train_micro_batch_size_per_gpu [plain]: train_micro_batch_size_per_gpu=null
  - [plain] nothing | []
no_batch_size train_micro_batch_size_per_gpu: whole gradient_clipping=auto
no_batch_size train_micro_batch_size_per_gpu [in_job]: whole adamw
no_batch_size_in_file train_micro_batch_size_per_gpu: whole adamw
  - adamw | [plain] | … elasticity.enabled=true
batch_not_a_number train_micro_batch_size_per_gpu: train_micro_batch_size_per_gpu="8"
  - train_micro_batch_size_per_gpu=8 | train_micro_batch_size_per_gpu=auto
batch_not_a_number gradient_accumulation_steps: gradient_accumulation_steps=0
batch_product train_batch_size [world_size=8]: train_batch_size=16 train_micro_batch_size_per_gpu=2
    gradient_accumulation_steps=2
  - [world_size=4] | [] | … train_batch_size=auto
batch_product train_batch_size: train_batch_size=15 train_micro_batch_size_per_gpu=2 gradient_accumulation_steps=2
batch_product train_batch_size [world_size=4]: train_batch_size=10 train_micro_batch_size_per_gpu=null
  - [world_size=5]
batch_product train_batch_size: train_batch_size=10 train_micro_batch_size_per_gpu=4
# values
fractional_integer zero.stage3_prefetch_bucket_size [0.15.0]: zero.stage=3 zero.stage3_prefetch_bucket_size=15099494.4
  - [0.14.5] | zero.stage=3 zero.sub_group_size=1e9
string_for_a_number zero.reduce_bucket_size: zero.stage=2 zero.reduce_bucket_size="5e8"
  - … zero.reduce_bucket_size="500000000" | zero.stage=2 zero.overlap_comm="true"
string_for_a_number zero.overlap_comm: zero.stage=2 zero.overlap_comm=maybe
quoted_value zero_allow_untested_optimizer: zero_allow_untested_optimizer="false"
  - zero_allow_untested_optimizer=false
quoted_value optimizer.params.lr: optimizer.type=AdamW optimizer.params.lr="1e-4"
  - adamw | … optimizer.params.lr=auto
quoted_value gradient_clipping: gradient_clipping="1.0"
  - gradient_clipping=1
block_wanted fp16: fp16=true
  - fp16.enabled=true | zero_optimization=true
block_wanted zero_optimization: zero_optimization=2
block_wanted zero.offload_param: zero.stage=3 zero.offload_param=true
  - … zero.offload_param=null
unknown_stage zero.stage: zero.stage=4
  - zero.stage=3 | zero.stage="2" | zero.stage=auto | zero.stage=[0,1,2] autotuning.enabled=true
unknown_stage zero.stage: zero.stage=[0,1] autotuning.enabled=false
unknown_stage zero.stage [0.14.5]: zero.stage="2"
  - [0.15.0]
unknown_offload_device zero.offload_param.device: zero.stage=3 zero.offload_param.device=cuda
  - … zero.offload_param.device=nvme zero.offload_param.nvme_path=/nvme | zero.stage=3 zero.offload_param={}
empty_bucket zero.reduce_bucket_size [0.19.6]: zero.stage=0 zero.reduce_bucket_size=0
  - [0.19.5] | zero.stage=2 zero.allgather_bucket_size=0
empty_bucket zero.reduce_bucket_size [0.12.0]: zero.stage=2 zero.reduce_bucket_size=-1
not_finite gradient_clipping: gradient_clipping=Infinity
  - steps_per_print=Infinity | gradient_clipping=1e+30
# keys
rejected_key zero.reduce_bucketsize: zero.stage=2 zero.reduce_bucketsize=5e8
  - activation_checkpointing.cpu_checkpoint=true | [0.17.0] bf16.x=1
removed_key amp: amp.enabled=false
  - [0.19.7]
removed_key zero.mics_shard_size [0.19.7]: zero.stage=3 zero.mics_shard_size=-1
  - [0.19.6]
misspelled_key gradient_cliping: gradient_cliping=1.0
  - gradient_clipping=1.0 | my_own_note=1 | _comment=gradient_cliping
misspelled_key activation_checkpointing.cpu_checkpoint: activation_checkpointing.cpu_checkpoint=true
misplaced_key offload_optimizer: offload_optimizer.device=cpu
  - zero.stage=2 offload | my_own_note=1 | aio.enabled=true | [0.19.6] amp.enabled=true amp.loss_scale=dynamic
key_of_another_release tensor_parallel [0.16.3]: tensor_parallel.autotp_size=2
  - [0.16.4]
unread_key my_own_note: my_own_note=1
  - _comment=1 | gradient_cliping=1.0
unread_key -: num-layers=1 norm=1 split=1 hidden=1 seq=1
unread_key pipeline.num_layers: pipeline.num_layers=12
  - pipeline.activation_checkpoint_interval=1 pipeline.use_reentrant=false | [0.12.3] pipeline.pipe_partitioned=true
  - checkpoint.load_universal=true data_types.grad_accum_dtype=fp32
  - data_efficiency.data_routing.random_ltd.total_layer_num=12
misspelled_key pipeline.activation_checkpointing_interval: pipeline.activation_checkpointing_interval=1
  - pipeline.activation_checkpoint_interval=1
key_of_another_release pipeline.grad_partitioned [0.12.2]: pipeline.grad_partitioned=false
  - [0.12.3]
unread_key pipeline.stages: pipeline.stages=4
  - pipeline.use_reentrant=false
# configs of deepspeed.init_inference
rejected_key max_out_token: whole inference max_out_token=512
  - whole inference max_out_tokens=512 | dtype=fp16 max_out_token=512
rejected_key tensor_parallel.tp_grain_size [0.16.1]: whole inference tensor_parallel.tp_grain_size=64
  - [0.16.2]
string_for_a_number max_out_tokens: whole inference max_out_tokens=many
  - … max_out_tokens=512
# bugs of single releases
deepcompile_bugs compile.deepcompile [0.19.3]: zero.stage=3 compile.deepcompile=true
  - [0.19.4] | [0.19.3] … zero.stage=0 | [0.19.3] … compile.deepcompile=false
deepcompile_bugs compile.deepcompile [0.16.6]: zero.stage=1 compile.deepcompile=true
compiled_checkpointing compile.enabled [0.14.2]: zero.stage=3 compile.enabled=true
  - [0.14.3] | [0.14.2] compile.enabled=true
nvme_gradients_lost zero.offload_optimizer.device [0.12.3]: zero.stage=3 nvme
  - [0.12.4] | [0.12.3] zero.stage=3 offload
  - [0.12.3] zero.stage=3 zero.offload_param.device=nvme zero.offload_param.nvme_path=/nvme
nvme_checkpoints_overwritten zero.offload_optimizer.device [0.17.6]: zero.stage=3 nvme
  - [0.18.0] | [0.12.6] | [0.17.6 world_size=1]
zenflow_never_selects zero.zenflow [0.18.3]: zero.stage=2 offload zero.zenflow={}
  - [0.19.2] | [0.18.2] | [0.19.1] … zero.stage=3 | [0.19.1] … zero.zenflow=null
zenflow_optimizer_keys optimizer.params.adam_w_mode: zero.stage=1 offload zero.zenflow={} optimizer.type=Adam
    optimizer.params.adam_w_mode=true
  - [0.19.0] zero.stage=1 offload zero.zenflow={} torch_adam | zero.stage=3 offload zero.zenflow={} torch_adam
  - zero.stage=1 offload torch_adam | zero.stage=1 offload zero.zenflow={} adamw
super_offload_settings zero.offload_optimizer.super_offload [0.18.8]: zero.stage=3 offload
    zero.offload_optimizer.super_offload=true
  - [0.18.9] | [0.18.8] zero.stage=3 offload | [0.18.8] … zero.stage=2
mics_groups_hang zero.mics_shard_size [0.19.3 world_size=4]: zero.stage=3 zero.mics_shard_size=2
  - [0.19.2] | [0.19.6 world_size=2] | [0.19.6] … zero.mics_shard_size=-1 | [0.19.6] … zero.stage=2
partition_patterns_match_nothing tensor_parallel.partition_config.layer_specs [0.18.6]: tensor_parallel.autotp_size=2
    tensor_parallel.partition_config.layer_specs=[{"patterns":[".*\\.self_attn\\.q_proj\\.weight$"]}]
  - [0.18.9] | [0.18.8] … tensor_parallel.partition_config.layer_specs=[{"patterns":[".*\\.q_proj\\.weight$"]}]
  - [0.18.8] … tensor_parallel.partition_config.layer_specs=[{"patterns":["(.*\\.)?self_attn\\.q_proj\\.weight$"]}]
  - [0.18.8] … tensor_parallel.autotp_size=1
checkpoint_writer_keeps_files checkpoint.writer [0.19.0]: checkpoint.writer.decoupled=true
  - [0.19.1] checkpoint.writer.type=Fast | [0.19.0] checkpoint.writer.type=python
  - [0.19.0] checkpoint.tag_validation=Ignore
straggler_times comms_logger.enabled [0.19.3]: comms_logger.enabled=true
  - [0.19.4] | [0.19.3] comms_logger.enabled=false
elastic_batch_above_maximum elasticity.max_train_batch_size [0.19.5]: elasticity.enabled=true
    elasticity.micro_batch_sizes=[7,11,13] elasticity.max_train_batch_size=500
  - [0.19.6] | [0.19.5] … elasticity.max_train_batch_size=1001
  - [0.19.5] … elasticity.micro_batch_sizes=[2,4,6] elasticity.max_train_batch_size=12
one_cycle_lists scheduler.params.cycle_min_lr [0.19.5]: scheduler.type=OneCycle scheduler.params.cycle_min_lr=[0.01]
    scheduler.params.cycle_max_lr=0.1
  - [0.19.6] | [0.19.5] one_cycle
scheduler_step_size_zero scheduler.params.cycle_first_step_size: one_cycle scheduler.params.cycle_first_step_size=0
  - … scheduler.params.cycle_first_step_size=1 scheduler.params.cycle_second_step_size=0 | one_cycle
scheduler_step_size_zero scheduler.params.lr_range_test_step_size [0.19.3]: scheduler.type=LRRangeTest
    scheduler.params.lr_range_test_step_size=0
  - scheduler.type=LRRangeTest scheduler.params={} | … scheduler.type=WarmupLR
nvme_pipeline_write zero.offload_optimizer.pipeline_write [0.14.4]: zero.stage=3 nvme
    zero.offload_optimizer.pipeline_write=true
  - [0.14.5] | [0.14.4] zero.stage=3 nvme
quantized_weights_in_bf16 zero.zero_quantized_weights [0.19.5]: zero.stage=3 zero.zero_quantized_weights=true
    bf16.enabled=true
  - [0.19.6] | [0.19.5] zero.stage=3 zero.zero_quantized_weights=true fp16.enabled=true | [0.19.5] … bf16.enabled=auto
quantized_gradients_of_odd_sizes zero.zero_quantized_gradients [0.13.1]: zero.stage=3 zero.zero_quantized_gradients=true
  - [0.13.2] | [0.13.1] zero.stage=3
immediate_grad_update bf16.immediate_grad_update [0.14.1]: bf16.enabled=true bf16.immediate_grad_update=true
  - [0.14.2] | [0.14.1] … zero.stage=2
separate_buckets_all_reduced zero.use_multi_rank_bucket_allreduce [0.12.6]: zero.stage=2
    zero.use_multi_rank_bucket_allreduce=false
  - [0.13.0] | [0.12.6] … zero.use_multi_rank_bucket_allreduce=true
empty_reductions zero.reduce_bucket_size [0.14.4]: zero.stage=2 zero.reduce_scatter=false zero.reduce_bucket_size=5e6
  - [0.14.5] | [0.14.4] zero.stage=2 zero.reduce_bucket_size=5e6
muon_in_zero3 gradient_accumulation_steps [0.19.7]: muon zero.stage=3 gradient_accumulation_steps=4
  - [] | [0.19.7] muon zero.stage=3 | [0.19.7] … zero.stage=2 | [0.19.7] … optimizer.type=AdamW optimizer.params.lr=1e-4
muon_in_zero3 optimizer.type [0.19.6]: muon zero.stage=3
  - [0.19.7] | [0.18.8] | [0.19.6] … zero.stage=2
hpz_quantized_frozen_weights zero.zero_quantized_nontrainable_weights: zero.stage=3 zero.zero_hpz_partition_size=8
    zero.zero_quantized_nontrainable_weights=true
  - … zero.zero_hpz_partition_size=1 | zero.stage=3 zero.zero_hpz_partition_size=8 | … zero.stage=2
memory_efficient_linear_ignored zero.memory_efficient_linear [0.19.3]: zero.stage=3 zero.memory_efficient_linear=true
  - [0.19.4] | [0.19.3] zero.stage=3 | [0.19.3] … zero.stage=2
joined_modules_released_singly zero.stage3_module_granularity_threshold [0.19.6]: zero.stage=3
    zero.stage3_module_granularity_threshold=4096
  - [0.16.2] | [0.19.7] | [0.19.6] … zero.stage3_module_granularity_threshold=0
single_rank_group zero.stage [0.19.3 world_size=1 launched=4]: zero.stage=3
  - [0.19.4 world_size=1 launched=4] | [0.19.3 world_size=4 launched=4] | [0.19.3 world_size=1 launched=1]
  - [0.19.3 launched=4] | [0.19.3 world_size=1 launched=4] zero.stage=2
fp16_norm_of_one_rank gradient_clipping [0.14.1 tensor_parallel=2]: fp16.enabled=true gradient_clipping=1.0
  - [0.14.2 tensor_parallel=2] | [0.14.1 tensor_parallel=1] | [0.14.1] | [0.14.1 tensor_parallel=2] … zero.stage=1
  - [0.14.1 tensor_parallel=2] fp16.enabled=true
float8_cast bf16.enabled [0.19.7 float8=true]: bf16.enabled=true
  - [float8=true] | [0.19.7 float8=false] | [0.19.7 float8=true] nothing
fp32_buffers_cast bf16.enabled [0.19.7 fp32_buffers=true]: bf16.enabled=true zero.stage=3
  - [fp32_buffers=true] | [0.19.2 fp32_buffers=true] … zero.stage=2 | [0.19.7] | [0.19.7 fp32_buffers=true] zero.stage=3
fp32_buffers_cast fp16.enabled [0.19.1 fp32_buffers=true]: fp16.enabled=true zero.stage=1
  - [0.19.2 fp32_buffers=true]
gradients_not_reduced_on_cpu zero.contiguous_gradients [0.19.7]: zero.stage=2 zero.contiguous_gradients=false
  - [] | [0.19.7] … zero.stage=3 | [0.19.7] zero.stage=2
curriculum_incomplete_batch data_efficiency.data_sampling.curriculum_learning [0.13.2]: curriculum
  - [0.13.3] | [0.13.2] … dataloader_drop_last=true | [0.13.2 world_size=1]
curriculum_short_batches data_efficiency.data_sampling.curriculum_learning: curriculum
  - … data_efficiency.enabled=false
hybrid_engine_of_bloom hybrid_engine.enabled [0.14.0]: hybrid_engine.enabled=true
  - [0.14.1] | [0.14.0] hybrid_engine.enabled=false
cosine_warmup_type scheduler.params.warmup_type [0.19.3]: cosine scheduler.params.warmup_type=cosine
  - [0.19.4] | [0.19.3] … scheduler.params.warmup_type=linear | [0.19.3] cosine | [0.19.3 scheduler=StepLR]
cosine_warmup_steps scheduler.params.warmup_num_steps [0.12.3]: cosine scheduler.params.warmup_num_steps=1
  - [0.12.4] | [0.12.3] … scheduler.params.warmup_num_steps=2
loss_scale_window_zero fp16.loss_scale_window: fp16.enabled=true fp16.loss_scale_window=0
  - … fp16.loss_scale_window=100 | … fp16.loss_scale=1024 | … fp16.enabled=false
breakdown_not_printed wall_clock_breakdown [0.17.6]: wall_clock_breakdown=true
  - [0.18.0] | [0.17.6] wall_clock_breakdown=false
breakdown_not_printed memory_breakdown [0.18.2]: memory_breakdown=true
  - [0.18.3]
flops_not_counted flops_profiler.enabled [0.13.2]: flops_profiler.enabled=true
  - [0.13.3] | [0.13.2] flops_profiler.enabled=false
shards_not_kept_on_host keep_module_on_host [0.16.4]: whole inference keep_module_on_host=true
  - [0.16.5] | [0.16.4] … keep_module_on_host=false
autotp_of_meta_model checkpoint [0.16.4]: whole tensor_parallel.tp_size=2 checkpoint=a.json
  - [0.16.5] | [0.16.4] whole inference checkpoint=a.json | [0.16.4] … tensor_parallel.tp_size=1
experts_taken_for_ranks moe.moe_experts [0.17.5]: whole inference moe.moe_experts=[8]
  - [0.17.6] | [0.17.5] whole inference moe.ep_size=2 | [0.17.5 world_size=1]
# templates
template -: template
  - train_batch_size=8 zero.stage=2 | _comment="<your config>" my_own_note=TODO
  - optimizer.type=ADAM optimizer.params.lr=1e-4 communication_data_type=FP32
  - wandb.enabled=true wandb.project="<your project>" | wandb.enabled=true wandb.group=ZERO_STAGE zero.stage=auto
template -: optimizer.type=Adam optimizer.params.betas=["%(beta1)s",0.999]
template - [plain]: train_batch_size=YOUR_BATCH_SIZE
template -: whole dtype=fp16 tensor_parallel.tp_size=<gpus>
placeholder_in_text -: wandb.enabled=true wandb.project="<your project>"
  - … wandb.project=project | tensorboard.enabled=true tensorboard.job_name=RUN_7 | template
bugs_with_auto -: fp16.enabled=auto
  - [fp16=true] | [fp16=false] | … bf16.enabled=true | fp16.enabled=true | fp16.enabled=${FP16}
# ZeRO and offloading
needs_stage_3 zero.offload_param: zero.stage=2 zero.offload_param.device=cpu
  - … zero.stage=3 | … zero.offload_param.device=none | … zero.stage=auto
needs_stage_3 zero.zero_hpz_partition_size: zero.stage=2 zero.zero_hpz_partition_size=8
  - … zero.zero_hpz_partition_size=1
needs_stage_3 zero.zero_quantized_gradients: zero.stage=1 zero.zero_quantized_gradients=true
hpz_backward_on_old_weights zero.zero_hpz_partition_size [0.13.1]: zero.stage=3 zero.zero_hpz_partition_size=2
  - [0.13.1] … zero.zero_hpz_partition_size=1 | [0.13.2]
offload_without_zero zero.offload_optimizer: zero.stage=0 offload
  - … zero.stage=1
no_nvme_path zero.offload_param.nvme_path: zero.stage=3 zero.offload_param.device=nvme
  - … zero.offload_param.nvme_path=/nvme | … zero.offload_param.device=cpu
offload_client_optimizer zero_force_ds_cpu_optimizer [plain optimizer=AdamW]: zero.stage=2 offload
  - [plain optimizer=DeepSpeedCPUAdam] | [plain optimizer=AdamW] … zero_force_ds_cpu_optimizer=false | [optimizer=AdamW]
offload_client_optimizer zero_force_ds_cpu_optimizer [0.17.5 plain optimizer=DeepSpeedCPULion]: zero.stage=2 offload
  - [0.17.6 plain optimizer=DeepSpeedCPULion]
offload_memory zero.offload_optimizer [parameters=90000000000000.0]: zero.stage=3 offload
  - [parameters=1000000.0] | [parameters=90000000000000.0] zero.stage=3 | [parameters=90000000000000.0 lora=peft]
weights_not_gathered zero.stage3_gather_16bit_weights_on_model_save [save_16bit=true]: zero.stage=3
  - [save_16bit=true] … zero.stage3_gather_16bit_weights_on_model_save=true | [save_16bit=true] zero.stage=2 | []
# optimizers and schedulers
max_grad_norm_in_optimizer optimizer.params.max_grad_norm: adamw optimizer.params.max_grad_norm=1.0
    gradient_clipping=auto
  - adamw gradient_clipping=auto | adamw optimizer.params.max_grad_norm=1.0
unused_max_grad_norm optimizer.params.max_grad_norm: adamw optimizer.params.max_grad_norm=1.0
  - … gradient_clipping=auto | adamw
unknown_optimizer optimizer.type: optimizer.type=AdamW8bit optimizer.params={}
  - optimizer.type=ADAMW | optimizer.type=RMSprop | [0.19.6] optimizer.type=OneBitAdam
unknown_optimizer optimizer.type [0.19.7]: optimizer.type=OneBitAdam
untested_optimizer optimizer.type: optimizer.type=SGD optimizer.params.lr=0.1 zero.stage=2
  - … zero_allow_untested_optimizer=true | … zero.stage=0 | adamw zero.stage=2 | [optimizer=AdamW]
untested_optimizer zero_allow_untested_optimizer [plain optimizer=SGD]: zero.stage=2
untested_optimizer optimizer.type [0.18.4]: optimizer.type=Muon zero.stage=2
  - [0.18.5]
one_bit_with_zero optimizer.type [0.16.9]: optimizer.type=OneBitAdam zero.stage=1
  - [0.16.9] optimizer.type=OneBitAdam | [0.16.9] adamw zero.stage=1
unknown_scheduler scheduler.type: scheduler.type=WarmupDecay scheduler.params={}
  - scheduler.type=CosineAnnealingLR scheduler.params.T_max=3 | … scheduler.type=WarmupLR
unknown_scheduler scheduler.type [0.12.2]: scheduler.type=WarmupCosineLR scheduler.params={}
incomplete_scheduler scheduler.params.total_num_steps: scheduler.type=WarmupDecayLR scheduler.params={}
  - scheduler.type=WarmupDecayLR scheduler.params.total_num_steps=auto | … scheduler.type=WarmupLR
incomplete_scheduler scheduler.params: scheduler.type=WarmupLR
passed_scheduler_unused scheduler [0.14.4 scheduler=LambdaLR]: scheduler.type=WarmupLR scheduler.params={}
  - [0.14.5 scheduler=LambdaLR] | [0.14.4] | [0.14.4 scheduler=LambdaLR] nothing
warmup_to_default_rate scheduler.params.warmup_max_lr [0.17.1]: adamw scheduler.type=WarmupLR
    scheduler.params.warmup_num_steps=10
  - [0.17.2] | [0.17.1] adamw scheduler.type=WarmupLR scheduler.params.warmup_max_lr=1e-4
  - [0.17.1] scheduler.type=WarmupLR scheduler.params={}
  - [0.17.1 optimizer=AdamW] adamw scheduler.type=WarmupLR scheduler.params={}
  - [0.17.1] optimizer.type=AdamW optimizer.params.lr=0.001 scheduler.type=WarmupLR scheduler.params={}
warmup_to_default_rate scheduler.params.warmup_max_lr: adamw scheduler.type=WarmupDecayLR
    scheduler.params.total_num_steps=100
warmup_steps_not_positive scheduler.params.warmup_num_steps [0.19.3]: scheduler.type=WarmupLR
    scheduler.params.warmup_num_steps=0
  - [0.19.2] | [0.19.3] … scheduler.params.warmup_num_steps=1
# defaults
gradient_clipping_default gradient_clipping: nothing
  - gradient_clipping=0.0 | gradient_clipping=auto | zero.stage=3 zero.offload_param.device=cpu
bf16_unchecked_gradients bf16.enabled [0.17.0 plain]: bf16.enabled=true zero.stage=2
  - [0.17.1 plain] | [0.17.0 plain] … zero.stage=0 | [0.17.0 plain] fp16.enabled=true zero.stage=2
  - [0.17.0 plain] … data_types.grad_accum_dtype=fp32 zero.stage=1
bf16_checkpointed_twice bf16.enabled [0.17.0 plain]: bf16.enabled=true data_types.grad_accum_dtype=fp32 zero.stage=1
  - [0.17.1 plain] bf16.enabled=true zero.stage=0 | [0.16.4 plain] bf16.enabled=true zero.stage=0
  - [0.17.0 plain] bf16.enabled=true zero.stage=1 | [0.17.0 plain] fp16.enabled=true zero.stage=0
bf16_overflow_default bf16.check_grad_overflow [plain]: bf16.enabled=true
  - [plain] … bf16.check_grad_overflow=false | [0.17.0 plain]
# the training around the config
zero3_device_map zero.stage [device_map=auto]: zero.stage=3
  - [device_map=auto] zero.stage=2 | []
frozen_base_saved checkpoint [lora=own]: nothing
  - [lora=peft]
moe_without_leaf_modules zero.stage [moe=true]: zero.stage=3
  - [moe=true] … zero.leaf_module.classes=["MixtralSparseMoeBlock"] | [moe=true] zero.stage=2
zero3_checkpointing_recompute zero.stage [0.19.2 lora=peft gradient_checkpointing=true]: zero.stage=3
  - [0.19.3 lora=peft gradient_checkpointing=true] | [0.19.2 lora=peft gradient_checkpointing=true] zero.stage=2
  - [0.19.2 lora=peft gradient_checkpointing=true use_reentrant=true] | [0.19.2 gradient_checkpointing=true]
mismatch_with_arguments train_micro_batch_size_per_gpu [per_device_train_batch_size=4]: train_micro_batch_size_per_gpu=2
  - [per_device_train_batch_size=2] | [per_device_train_batch_size=4] train_micro_batch_size_per_gpu=auto
  - [plain per_device_train_batch_size=4]
mismatch_with_arguments bf16.enabled [bf16=false]: bf16.enabled=true
mismatch_with_arguments optimizer.params.betas [adam_beta2=0.999]: adamw optimizer.params.betas=[0.9,0.95]
  - [adam_beta2=0.95]
mismatch_with_arguments train_batch_size [world_size=8 per_device_train_batch_size=2]: train_batch_size=32
  - [world_size=8 per_device_train_batch_size=2 gradient_accumulation_steps=2]
"""


def told(words):
    """The release, and other arguments of `check`."""
    release, around, given = NEWEST, {}, {}
    for name, equals, value in (word.partition("=") for word in words.split()):
        if name == "world_size":
            around[name] = int(value)
        elif equals:
            given[name] = value
        elif name[0].isdigit():
            release = name
        else:
            around[name] = True
    return release, {**around, "given": checked(given)}


ELSEWHERE = {  # rule -> its test in this directory
    "duplicate_key": "test_check_files",
    "not_plain_json": "test_check_files",
    "accelerate_ignores": "test_check_files",
    "accelerate_not_deepspeed": "test_check_files",
    "accelerate_processes": "test_check_files",
    "accelerate_zero3": "test_check_files",
    "bugs_beyond_the_config": "test_bugs_that_the_config_cannot_show_are_one_note",
    "accelerate_without_zero": "test_check_files",
    "pinned_memory_limited": "test_pinned_memory_on_wsl2",
}


@dataclass
class Case:
    rule: str
    where: str
    release: str
    around: dict
    config: dict
    near: list

    def __str__(self):
        return f"{self.rule}-{self.where}-{self.release}"


def read(table):
    text = "\n".join(line for line in table.splitlines() if not line.startswith("#"))
    for rule, where, context, config, near in re.findall(
        r"^(\w+) (\S+?)(?: \[(.*)\])?:\s((?:.|\n    )+)((?:\n  - .*(?:\n    .*)*)*)", text, re.MULTILINE
    ):
        where = re.sub(r"^zero\.", "zero_optimization.", where.replace("-", ""))
        case = Case(rule, where, *told(context), config_of(config), [])
        for word in re.split(r"\n  - | \| ", near)[1:]:
            context, config = re.fullmatch(r"(?:\[(.*?)\])?\s*(.*)", word, re.DOTALL).groups()
            case.near.append((config_of(config, case.config) if config else case.config, *told(context or "")))
        yield case


CASES = list(read(TABLE))


@pytest.fixture(autouse=True)
def torch_is_installed(monkeypatch):
    """Version gates see torch, whether or not it is installed."""
    installed = versions.installed
    monkeypatch.setattr(versions, "installed", lambda name: "2.13.0" if name == "torch" else installed(name))


def found(config, release=NEWEST, around=None):
    if isinstance(config, str):
        config = config_of(config)
    if not isinstance(config, VerbatimConfig):
        config = {**BATCH, **config}
    return checking.check(config, deepspeed=release, **(around or {})).findings


def ids(*arguments):
    return [each.rule for each in found(*arguments)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_problem_is_found(case):
    findings = [each for each in found(case.config, case.release, case.around) if each.rule == case.rule]
    assert [finding.where for finding in findings] == [case.where]
    assert findings[0].remedy


@pytest.mark.parametrize("case", [case for case in CASES if case.near], ids=str)
def test_a_near_miss_is_not_found(case):
    for near in case.near:
        assert case.rule not in ids(*near), near


def test_every_rule_has_a_case():
    known = {rule.id for rule in rules.load("dsfix.check.rules") if not rule.id.startswith("bug_")}
    assert known == {case.rule for case in CASES} | ELSEWHERE.keys()


def test_ids_are_unique_and_evidence_is_given():
    every = rules.load("dsfix.check.rules")
    assert len({rule.id for rule in every}) == len(every)
    assert all(rule.evidence and rule.remedy for rule in every)


def test_no_rule_fails_on_a_strange_config():
    names = ["train_batch_size", "zero_optimization", "fp16", "optimizer", "scheduler", "elasticity", "bf16"]
    configs = []
    for value in [None, 1, "x", [1], {"a": {"b": 1}}, True, 1e400]:
        configs += [{name: value} for name in [*names, "checkpoint"]]
        configs += [{"zero_optimization": {name: value}} for name in ("stage", "offload_param", "reduce_bucket_size")]
        block = {"type": value, "params": value}
        configs += [{"optimizer": block, "scheduler": block}]
    for config in configs:
        for release, plain in (("0.12.0", False), ("0.14.5", True), (NEWEST, False), (NEWEST, True)):
            findings = checking.check(config, deepspeed=release, plain=plain, world_size=2).findings
            assert not [finding for finding in findings if "could not be evaluated" in finding.what], config


def test_a_placeholder_has_no_other_finding():
    config = (
        "template steps_per_print=LOG_EVERY_STEPS gradient_clipping=TODO bf16.enabled=$BF16 optimizer.type=<name> "
        "optimizer.params.lr={lr} zero.offload_param.device=${DEVICE} zero.overlap_comm=TODO "
        'prescale_gradients="<true or false>"'
    )
    names = ["steps_per_print", "prescale_gradients", "gradient_clipping", "fp16.enabled", "optimizer.params.lr"]
    for release in ("0.12.0", "0.16.9", NEWEST):
        for plain in (False, True):
            findings = found(config, release, {"plain": plain, "world_size": 4})
            assert [finding.rule for finding in findings if finding.level is not rules.Level.NOTE] == ["template"]
            assert all(f"{name} (" in findings[0].what for name in names)
        more = f"{config} data_efficiency.data_routing.random_ltd.total_layer_num=<layers>"
        assert "random_ltd.total_layer_num (<layers>)" in found(more, release)[0].what  # may be read
    other = found({**config_of(config), "zero_optimization": {"stage": 4}})
    assert {each.rule for each in other if each.level is rules.Level.ERROR} == {"template", "unknown_stage"}


@pytest.mark.parametrize(
    ("config", "context", "infers"),
    [
        ("inference", "", True),
        ("inference", "plain", False),
        ("inference", "in_job", False),
        ("inference train_micro_batch_size_per_gpu=2", "", False),
        ("tensor_parallel.tp_size=2", "0.14.2", True),
        ("tensor_parallel.autotp_size=2 zero.stage=1", "", False),
        ("tp.tp_size=2 dtype=fp16", "", True),
        ("dtype=fp16 mp_size=2", "0.12.0", True),
        ("zero.stage=3 zero.stage3_max_live_parameters=auto zero.offload_param.device=cpu", "", False),
    ],
)
def test_a_config_of_init_inference_is_recognised_by_its_keys(config, context, infers):
    release, around = told(context)
    seen = checking.check(config_of(config), deepspeed=release, **around)
    assert seen.facts.inference is infers
    assert any("init_inference" in each for each in seen.assumed) is infers


def test_only_certain_problems_of_an_inference_config_are_reported():
    for release in ("0.12.0", NEWEST):
        config = "whole inference replace_method=auto mp_size=2 max_out_tokens=2048"
        assert ids(config, release) == []


def test_values_that_autotuning_tries_have_no_finding():
    config = "zero.stage=[0,1,2,3] autotuning.enabled=true zero.reduce_bucket_size=[5e7,5e8]"
    for release in ("0.12.0", "0.16.9", NEWEST):
        for plain in (False, True):
            found_ids = ids(f"{config} zero.overlap_comm=[true,false]", release, {"plain": plain})
            assert found_ids == ["gradient_clipping_default"]


def test_pinned_memory_on_wsl2(monkeypatch):
    config = "zero.stage=2 offload zero.offload_optimizer.pin_memory=true"
    assert "pinned_memory_limited" not in ids(config)
    monkeypatch.setattr(checking, "wsl", lambda kernel: 2)
    assert "pinned_memory_limited" in ids(config)
    assert "pinned_memory_limited" in ids("zero.stage=2 offload")
    assert "pinned_memory_limited" not in ids("zero.stage=2 offload", "0.19.4")


# patch, release: config that triggers the bug, and one that does not
BUGS = """
zero3_offload_clip_device 0.14.2: zero.stage=3 offload gradient_clipping=1.0 | zero.stage=3 offload
zero2_accumulation_drops_microbatches 0.18.0: zero.stage=2 gradient_accumulation_steps=2 | zero.stage=2
zero2_offload_accumulation_drops 0.18.0: zero.stage=2 offload gradient_accumulation_steps=3 | zero.stage=2 offload
bf16_gradients_unreduced 0.13.2: bf16.enabled=true | bf16.enabled=true zero.stage=1
bf16_stage0_no_update 0.18.0: bf16.enabled=true | bf16.enabled=true zero.stage=1
fp16_zero1_overflow_deadlock 0.17.6: fp16.enabled=true zero.stage=1 | fp16.enabled=true zero.stage=2
zero12_offload_nonfinite_norm_long 0.16.9: bf16.enabled=true zero.stage=2 offload
  | fp16.enabled=true zero.stage=2 offload
zero12_offload_overflow_repeats 0.19.8: bf16.enabled=true data_types.grad_accum_dtype=fp32 zero.stage=1 offload
  | bf16.enabled=true data_types.grad_accum_dtype=fp32 zero.stage=1
hpz_stale_secondary 0.18.0: zero.stage=3 zero.zero_hpz_partition_size=8 | zero.stage=3
zero3_bf16_nonfinite_step 0.19.2: bfloat16.enabled=true bfloat16.check_grad_overflow="true" zero.stage=3
  | bf16.enabled=true zero.stage=3
zero3_bf16_nonfinite_step 0.19.3: bf16.enabled=true zero.stage=3
  | bf16.enabled=true bf16.check_grad_overflow=false zero.stage=3
fp16_optimizer_never_steps 0.18.0: fp16.enabled=true optimizer.type=Adam optimizer.params={}
  | fp16.enabled=true optimizer.type=Adam optimizer.params.torch_adam=true
universal_checkpoint_local_rank 0.17.0: checkpoint.load_universal=true zero.stage=3
  | checkpoint.load_universal=true zero.stage=2
"""
BUGS = re.findall(r"(\w+) (\S+): (.*)\s+\| (.*)", BUGS)


@pytest.mark.parametrize(("patch", "release", "shows", "near"), BUGS, ids=[f"{each[0]}-{each[1]}" for each in BUGS])
def test_a_known_bug_that_the_config_triggers(patch, release, shows, near):
    other = next(each for each in ("0.12.0", NEWEST) if not registry.catalogue()[patch].patch.claims(each))
    for config, version, reported in ((shows, release, True), (near, release, False), (shows, other, False)):
        assert (patch in [name for each in found(config, version) for name in each.patches]) is reported


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        ("lora=peft weight_decay=0.1", True),
        ("lora=peft weight_decay=0", False),
        ("lora=peft", False),
        ("weight_decay=0.1", False),
    ],
)
def test_frozen_parameters_are_decayed_only_where_some_are_known_and_decay_is(said, reported):
    _, around = told(said)
    assert ("bug_frozen_parameters_decayed" in ids("fp16.enabled=true", "0.18.9", around)) is reported
    decay = around["given"].pop("weight_decay", 0)
    named = f"fp16.enabled=true adamw optimizer.params.weight_decay={decay}"
    assert ("bug_frozen_parameters_decayed" in ids(named, "0.18.9", around)) is reported


DEPENDS = [  # release, config, what is said
    ("0.18.0", "zero.stage=2 gradient_accumulation_steps=auto", "gradient_accumulation_steps above 1: zero2_acc"),
    (
        "0.18.0",
        "zero.stage=2 offload gradient_accumulation_steps=auto",
        "gradient_accumulation_steps above 2: zero2_offload_accumulation_drops",
    ),
    ("0.14.2", "zero.stage=3 offload gradient_clipping=auto", "gradient_clipping above 0: zero3_offload_clip"),
    ("0.18.0", "bf16.enabled=auto", "bf16 on: bf16_stage0_no_update"),
    ("0.16.9", "fp16.enabled=auto zero.stage=2 offload", "fp16 off: zero12_offload_nonfinite_norm_long"),
    (
        "0.19.8",
        "fp16.enabled=auto bf16.enabled=auto data_types.grad_accum_dtype=fp32 zero.stage=1 offload",
        "fp16 or bf16 on: zero12_offload_overflow_repeats",
    ),
]


@pytest.mark.parametrize(("release", "config", "said"), DEPENDS)
def test_bugs_that_depend_on_what_auto_becomes_are_one_note(release, config, said):
    findings = found(config, release)
    [note] = [finding for finding in findings if finding.rule == "bugs_with_auto"]
    assert said in note.what
    bug = said.rpartition(": ")[2]
    assert not [finding for finding in findings if finding.rule.startswith(f"bug_{bug}")]


def test_bugs_of_every_fp16_job_are_not_noted():
    assert "bugs_with_auto" not in ids("fp16.enabled=auto bf16.enabled=auto zero.stage=2", NEWEST)
    assert "bug_fp16_scale_growth_step" in ids("fp16.enabled=true zero.stage=2", NEWEST)


BEYOND = [  # release, config, bugs, other bugs
    ("0.18.9", "zero.stage=2", "dict_output_double_scaling cpu_zero12_split_view", "zero3_checkpoint_recompute"),
    ("0.18.9", "zero.stage=3", "zero3_checkpoint_recompute zero3_gather_waits_for_last", "cpu_zero12_split_view"),
    ("0.18.9", "zero.stage=3", "dict_output_double_scaling half_rotary_frequencies", "warmup_group_rates"),
    ("0.18.9", "zero.stage=3 scheduler.type=WarmupLR scheduler.params={}", "warmup_group_rates", ""),
    ("0.18.9", "zero.stage=2 bf16.enabled=false", "empty_group_scheduler", "half_rotary_frequencies"),
    ("0.19.8", "zero.stage=2", "dict_output_double_scaling_direct", "zero12_several_backwards_drop"),
    ("0.18.2", "zero.stage=2", "", "dict_output_double_scaling"),
]


@pytest.mark.parametrize(("release", "config", "bugs", "others"), BEYOND)
def test_bugs_that_the_config_cannot_show_are_one_note(release, config, bugs, others):
    config = f"gradient_clipping=auto bf16.enabled=auto {config}"
    [note] = [each for each in found(config, release) if each.rule == "bugs_beyond_the_config"]
    named = set(re.findall(r"\w+", note.what))
    assert named >= set(bugs.split())
    assert not named & set(others.split())


def test_bugs_that_the_config_cannot_show_are_noted_if_accelerate_or_transformers_reads_it():
    assert "bugs_beyond_the_config" not in ids("zero.stage=2", "0.18.9")
    assert "bugs_beyond_the_config" not in ids("zero.stage=2 gradient_clipping=auto", "0.18.9", {"plain": True})


LARGE = "bug_zero12_overlap_large_gradient_freed"
UNWAITED = "bug_zero3_weights_gathered_before_step"


@pytest.mark.parametrize(
    ("bug", "release", "config", "reported"),
    [
        ("bug_elastic_checkpoint_scalar_step", "0.18.0", "zero.stage=1 zero.elastic_checkpoint=true", True),
        # DeepSpeed's own Adam counts in numbers
        ("bug_elastic_checkpoint_scalar_step", "0.18.0", "zero.stage=1 zero.elastic_checkpoint=true adamw", False),
        ("bug_elastic_checkpoint_scalar_step", "0.18.0", "zero.stage=3 zero.elastic_checkpoint=true", False),
        ("bug_zero_reduce_bucket_size_zero", "0.19.5", "zero.stage=2 zero.reduce_bucket_size=0", True),
        ("bug_zero_reduce_bucket_size_zero", "0.19.5", "zero.stage=0 zero.reduce_bucket_size=0", False),
        ("bug_cpu_adam_amsgrad", "0.19.7", "zero.stage=2 offload adamw optimizer.params.amsgrad=true", True),
        ("bug_cpu_adam_amsgrad", "0.19.7", "zero.stage=2 adamw optimizer.params.amsgrad=true", False),
        ("bug_zero12_norm_of_nonfinite_group", "0.19.2", "zero.stage=2 bf16.enabled=true gradient_clipping=1.0", True),
        ("bug_zero12_norm_of_nonfinite_group", "0.19.3", "zero.stage=2 bf16.enabled=true gradient_clipping=1.0", False),
        ("bug_zero12_norm_of_nonfinite_group", "0.19.2", "zero.stage=2 bf16.enabled=true", False),
        ("bug_zero12_norm_of_nonfinite_group", "0.19.2", "zero.stage=2 offload", False),
        (LARGE, NEWEST, "zero.stage=2 zero.overlap_comm=true zero.reduce_bucket_size=2e8", True),
        (LARGE, NEWEST, "zero.stage=2 zero.overlap_comm=true zero.reduce_bucket_size=auto", True),
        (LARGE, NEWEST, "zero.stage=2 zero.overlap_comm=true zero.reduce_bucket_size=5e8", False),
        (LARGE, NEWEST, "zero.stage=2 zero.overlap_comm=true", False),
        (UNWAITED, NEWEST, "zero.stage=3 timers.throughput.enabled=false", True),
        (UNWAITED, NEWEST, "zero.stage=3 timers.throughput.synchronized=false", True),
        (UNWAITED, NEWEST, "zero.stage=3 timers.throughput.enabled=true", False),
        (UNWAITED, NEWEST, "zero.stage=3 zero.overlap_comm=false timers.throughput.enabled=false", False),
        (UNWAITED, NEWEST, "zero.stage=3 offload timers.throughput.enabled=false", False),
        (UNWAITED, NEWEST, "zero.stage=2 timers.throughput.enabled=false", False),
    ],
)
def test_bugs_of_some_optimizers_buckets_and_timers(bug, release, config, reported):
    assert (bug in ids(config, release)) is reported


def test_rules_name_patches_of_the_catalogue():
    named = {name for rule in rules.load("dsfix.check.rules") for name in rule.patches}
    assert named <= registry.catalogue().keys()
