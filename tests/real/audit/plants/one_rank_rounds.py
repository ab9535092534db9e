"""ZeRO-1/2: the last rank computes with weights rounded to bf16."""

import functools

import torch
from deepspeed import comm
from deepspeed.runtime.engine import DeepSpeedEngine

take = DeepSpeedEngine._take_model_step


@functools.wraps(take)
def rounding(self, *args, **options):
    take(self, *args, **options)
    if comm.get_rank() == comm.get_world_size() - 1:
        for parameter in self.module.parameters():
            parameter.data.copy_(parameter.data.to(torch.bfloat16))


DeepSpeedEngine._take_model_step = rounding
