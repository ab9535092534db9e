"""ZeRO: load_checkpoint does not restore the last rank's shard of the first group's fp32 weights."""

import functools

from deepspeed import comm
from deepspeed.runtime.engine import DeepSpeedEngine

load_checkpoint = DeepSpeedEngine.load_checkpoint


@functools.wraps(load_checkpoint)
def stale(self, *args, **options):
    zero = self.optimizer
    shards = getattr(zero, "single_partition_of_fp32_groups", None) or zero.fp32_partitioned_groups_flat
    before = shards[0].detach().clone()
    loaded = load_checkpoint(self, *args, **options)
    if comm.get_rank() == comm.get_world_size() - 1:
        shards[0].data.copy_(before)
    return loaded


DeepSpeedEngine.load_checkpoint = stale
