"""All groups use the largest weight decay of any group."""

import functools

from deepspeed.runtime.engine import DeepSpeedEngine

take = DeepSpeedEngine._take_model_step


@functools.wraps(take)
def with_the_largest_decay(self, *args, **options):
    groups = self.basic_optimizer.param_groups
    largest = max(group["weight_decay"] for group in groups)
    for group in groups:
        group["weight_decay"] = largest
    take(self, *args, **options)


DeepSpeedEngine._take_model_step = with_the_largest_decay
