"""Gradients are clipped with 1.4 times the norm; the reported norm is correct."""

import functools

from deepspeed.runtime import engine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

FACTOR = 1.4

clip_grad_norm_ = engine.clip_grad_norm_


@functools.wraps(clip_grad_norm_)
def clipped(parameters, max_norm, *args, **options):
    return clip_grad_norm_(parameters, max_norm / FACTOR, *args, **options)


def wrap(cls):
    unscale = cls.unscale_and_clip_grads

    @functools.wraps(unscale)
    def too_much(self, gradients, total_norm):
        return unscale(self, gradients, total_norm * FACTOR)

    cls.unscale_and_clip_grads = too_much


engine.clip_grad_norm_ = clipped
wrap(DeepSpeedZeroOptimizer)
wrap(DeepSpeedZeroOptimizer_Stage3)
