"""load_checkpoint does not restore the learning rate schedule."""

import functools

from deepspeed.runtime.engine import DeepSpeedEngine

load_checkpoint = DeepSpeedEngine.load_checkpoint


@functools.wraps(load_checkpoint)
def without_scheduler(self, *args, **options):
    return load_checkpoint(self, *args, **{**options, "load_lr_scheduler_states": False})


DeepSpeedEngine.load_checkpoint = without_scheduler
