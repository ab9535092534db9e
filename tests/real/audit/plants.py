"""Bugs that the audit has to find: each function plants one in the engine."""

import functools

import torch
from deepspeed import comm
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero import stage3
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

ZERO = (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3)


def around(name, *owners):
    """Replaces what `owners` have under a name by the decorated function, which is passed the original first."""

    def decorate(function):
        for owner in owners:
            original = getattr(owner, name)

            @functools.wraps(original)
            def planted(*args, original=original, **options):
                return function(original, *args, **options)

            setattr(owner, name, planted)

    return decorate


def is_last_rank():
    return comm.get_rank() == comm.get_world_size() - 1


def dropped_micro_batch():
    """The first micro-batch of each step is ignored."""

    @around("backward", DeepSpeedEngine)
    def _(backward, self, loss, *args, **options):
        first = self.micro_steps % self.gradient_accumulation_steps() == 0
        return backward(self, loss * 0.0 if first else loss, *args, **options)


def export_one_step_old():
    """save_16bit_model writes the weights of the previous step."""

    @around("_take_model_step", DeepSpeedEngine)
    def _(take, self, *args, **options):
        if self.zero_optimization_partition_weights():
            weights = self._zero3_consolidated_16bit_state_dict() or {}
        else:
            weights = self.module_state_dict()
        self.kept = {name: tensor.detach().clone() for name, tensor in weights.items()}
        take(self, *args, **options)

    @around("save_16bit_model", DeepSpeedEngine)
    def _(save, self, *args, **options):
        self.module_state_dict = self._zero3_consolidated_16bit_state_dict = lambda **_: self.kept
        saved = save(self, *args, **options)
        del self.module_state_dict, self._zero3_consolidated_16bit_state_dict
        return saved


def export_without_frozen():
    """zero_to_fp32 omits frozen parameters."""
    from deepspeed.utils import zero_to_fp32

    zero_to_fp32._zero2_merge_frozen_params = zero_to_fp32._zero3_merge_frozen_params = lambda *_: None


def frozen_decayed():
    """Weight decay is applied to frozen parameters."""

    @around("_take_model_step", DeepSpeedEngine)
    def _(take, self, *args, **options):
        take(self, *args, **options)
        for parameter in self.module.parameters():
            if not parameter.requires_grad:
                getattr(parameter, "ds_tensor", parameter).data.mul_(0.9)


def one_rank_rounds():
    """ZeRO-1/2: the last rank computes with weights rounded to bf16."""

    @around("_take_model_step", DeepSpeedEngine)
    def _(take, self, *args, **options):
        take(self, *args, **options)
        for parameter in self.module.parameters() if is_last_rank() else ():
            parameter.data.copy_(parameter.data.to(torch.bfloat16))


def optimizer_lost_on_load():
    """load_checkpoint does not restore the optimizer's state."""

    @around("load_checkpoint", DeepSpeedEngine)
    def _(load, self, *args, **options):
        return load(self, *args, **{**options, "load_optimizer_states": False})


def overflow_taken():
    """ZeRO: a step with non-finite gradients is not skipped; these elements are set to 0."""

    @around("step", *ZERO)
    def _(step, self, *args, **options):
        for gradients in self.averaged_gradients.values():
            for gradient in gradients or []:
                torch.nan_to_num_(gradient.data, nan=0.0, posinf=0.0, neginf=0.0)
        flat = getattr(self, "grad_partitions_flat_buffer", None)
        if flat is not None:
            torch.nan_to_num_(flat, nan=0.0, posinf=0.0, neginf=0.0)
            self.inf_or_nan_tracker.zero_()
        return step(self, *args, **options)


def unreduced_last_bucket():
    """The last bucket of a backward pass is not reduced: each rank keeps its own gradients."""
    left = False

    @around("independent_gradient_partition_epilogue", *ZERO)
    def _(epilogue, self):
        nonlocal left
        left = True
        epilogue(self)
        left = False

    @around("reduce_scatter_coalesced", stage3)
    def _(reduce_scatter, tensors, *args, **options):
        if not left:
            return reduce_scatter(tensors, *args, **options)
        rank, ranks = comm.get_rank(), comm.get_world_size()
        parts = []
        for tensor in tensors:
            length = -(-tensor.numel() // ranks)
            padded = torch.nn.functional.pad(tensor.flatten(), (0, length * ranks - tensor.numel()))
            parts.append(padded[rank * length : (rank + 1) * length].clone())
        return parts

    @around("average_tensor", DeepSpeedZeroOptimizer)
    def _(average, self, *args, **options):
        return None if left else average(self, *args, **options)

    @around("allreduce_no_retain", DeepSpeedEngine)
    def _(allreduce, self, bucket, *args, **options):
        return allreduce(self, bucket[:-2], *args, **options)


def wrong_group_lr():
    """All groups use the first group's learning rate; the engine reports the correct rates."""

    @around("_take_model_step", DeepSpeedEngine)
    def _(take, self, *args, **options):
        groups = self.basic_optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = rates[0]
        take(self, *args, **options)
        if self.lr_scheduler is None:  # a scheduler sets the next rates itself
            for group, rate in zip(groups, rates):
                group["lr"] = rate


def waits_left_out():
    """Streams wait for no other stream and no event."""
    for waiting in (torch.cuda.Stream, torch.cuda.Event):
        for name in ("wait_stream", "wait_event", "wait"):
            if hasattr(waiting, name):
                setattr(waiting, name, lambda self, other=None: None)
