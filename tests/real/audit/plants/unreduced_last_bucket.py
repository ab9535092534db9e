"""The last bucket of a backward pass is not reduced: each rank keeps its own gradients."""

import functools

import torch
from deepspeed import comm
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero import stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

left = False


def wrap_epilogue(cls):
    epilogue = cls.independent_gradient_partition_epilogue

    @functools.wraps(epilogue)
    def marking(self):
        global left
        left = True
        epilogue(self)
        left = False

    cls.independent_gradient_partition_epilogue = marking


reduce_scatter_coalesced = stage3.reduce_scatter_coalesced


@functools.wraps(reduce_scatter_coalesced)
def own_part(tensors, *args, **options):
    if not left:
        return reduce_scatter_coalesced(tensors, *args, **options)
    rank, ranks = comm.get_rank(), comm.get_world_size()
    parts = []
    for tensor in tensors:
        length = -(-tensor.numel() // ranks)
        padded = torch.nn.functional.pad(tensor.flatten(), (0, length * ranks - tensor.numel()))
        parts.append(padded[rank * length : (rank + 1) * length].clone())
    return parts


average_tensor = DeepSpeedZeroOptimizer.average_tensor


@functools.wraps(average_tensor)
def left_alone(self, *args, **options):
    return None if left else average_tensor(self, *args, **options)


allreduce_no_retain = DeepSpeedEngine.allreduce_no_retain


@functools.wraps(allreduce_no_retain)
def all_but_two(self, bucket, *args, **options):
    return allreduce_no_retain(self, bucket[:-2], *args, **options)


wrap_epilogue(DeepSpeedZeroOptimizer)
wrap_epilogue(stage3.DeepSpeedZeroOptimizer_Stage3)
stage3.reduce_scatter_coalesced = own_part
DeepSpeedZeroOptimizer.average_tensor = left_alone
DeepSpeedEngine.allreduce_no_retain = all_but_two
