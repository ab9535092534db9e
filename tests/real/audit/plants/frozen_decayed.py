"""Weight decay is applied to frozen parameters."""

import functools

from deepspeed.runtime.engine import DeepSpeedEngine

take = DeepSpeedEngine._take_model_step


@functools.wraps(take)
def decaying(self, *args, **options):
    take(self, *args, **options)
    for parameter in self.module.parameters():
        if not parameter.requires_grad:
            getattr(parameter, "ds_tensor", parameter).data.mul_(0.9)


DeepSpeedEngine._take_model_step = decaying
