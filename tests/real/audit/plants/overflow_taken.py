"""ZeRO: a step with non-finite gradients is not skipped; these elements are set to 0."""

import functools

import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer


def wrap(cls):
    step = cls.step

    @functools.wraps(step)
    def anyway(self, *args, **options):
        for gradients in self.averaged_gradients.values():
            for gradient in gradients or []:
                torch.nan_to_num_(gradient.data, nan=0.0, posinf=0.0, neginf=0.0)
        flat = getattr(self, "grad_partitions_flat_buffer", None)
        if flat is not None:
            torch.nan_to_num_(flat, nan=0.0, posinf=0.0, neginf=0.0)
            self.inf_or_nan_tracker.zero_()
        return step(self, *args, **options)

    cls.step = anyway


wrap(DeepSpeedZeroOptimizer)
wrap(DeepSpeedZeroOptimizer_Stage3)
