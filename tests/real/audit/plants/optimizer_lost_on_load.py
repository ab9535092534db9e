"""load_checkpoint does not restore the optimizer's state."""

import functools

from deepspeed.runtime.engine import DeepSpeedEngine

load_checkpoint = DeepSpeedEngine.load_checkpoint


@functools.wraps(load_checkpoint)
def without_optimizer(self, *args, **options):
    return load_checkpoint(self, *args, **{**options, "load_optimizer_states": False})


DeepSpeedEngine.load_checkpoint = without_optimizer
