"""The loss is divided by the accumulation steps twice."""

import functools

from deepspeed.runtime.engine import DeepSpeedEngine

backward = DeepSpeedEngine.backward


@functools.wraps(backward)
def twice(self, loss, *args, **options):
    return backward(self, loss / self.gradient_accumulation_steps(), *args, **options)


DeepSpeedEngine.backward = twice
