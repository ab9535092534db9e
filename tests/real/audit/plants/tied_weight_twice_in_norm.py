"""ZeRO: a parameter that two modules share counts twice in the gradient norm."""

import functools

from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

shared = set()
initialize = DeepSpeedEngine.__init__


@functools.wraps(initialize)
def noting(self, *args, **options):
    initialize(self, *args, **options)
    seen = set()
    for _, parameter in self.module.named_parameters(remove_duplicate=False):
        (shared if id(parameter) in seen else seen).add(id(parameter))


def wrap(cls):
    norm = cls.get_grad_norm_direct

    @functools.wraps(norm)
    def twice(self, gradients, parameters, *args, **options):
        again = [(g, p) for g, p in zip(gradients, parameters) if id(p) in shared]
        gradients = [*gradients[: len(parameters)], *(g for g, _ in again)]
        return norm(self, gradients, [*parameters, *(p for _, p in again)], *args, **options)

    cls.get_grad_norm_direct = twice


DeepSpeedEngine.__init__ = noting
wrap(DeepSpeedZeroOptimizer)
wrap(DeepSpeedZeroOptimizer_Stage3)
