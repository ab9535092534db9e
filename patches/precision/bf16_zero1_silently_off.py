"""bf16 with ZeRO-1 and gradient accumulation in fp32: the job gets neither ZeRO-1 nor fp32 accumulation.

Why: `data_types.grad_accum_dtype: "fp32"` with bf16 and ZeRO-1 requests BF16_Optimizer. Since 0.17.6 the names of the
    two bf16 wrappers, "with fp32 accumulation" and "without ZeRO", are the same string, "bf16", and the second is
    checked first: the engine uses FP16_Optimizer or FP16_UnfusedOptimizer. Each rank holds all fp32 weights and
    optimizer states, gradients are accumulated in bf16, and checkpoints cannot be loaded.
How: with ZeRO enabled, "bf16" means BF16_Optimizer again, which adds each gradient to the fp32 ones at once; `.grad`
    holds the sums after `engine.backward`, writes through `.grad.data` are not seen. `loss.backward()` without the
    engine is rejected. With a warning ZeRO-1 stays off for sparse gradients, frozen parameters in the optimizer, and
    optimizers that may need whole parameters (LARS, LAMB, Muon, Adafactor, subclasses, step hooks).
Changes: states are partitioned and gradients accumulated in fp32: numbers change by bf16's rounding. A step of zero or
    non-finite gradients fails unless bf16_nonfinite_step_ends_job is applied. A checkpoint written without the patch
    has no optimizer state: load it with `load_optimizer_states=False`.
Workaround: None in the script; ZeRO-2 helps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran, took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_BF16 = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"
_INIT = f"{_BF16}.__init__"
_OF_TORCH = (
    *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)
_ADAMS = ("DeepSpeedCPUAdam", "FusedAdam")
_LIONS = ("DeepSpeedCPULion", "FusedLion")
# attribute of a parameter: its `.grad` that holds the sum, and that tensor's version
_SHOWN = "_dsfix_shown"


def is_for(engine: Any, optimizer: Any) -> bool:
    """Whether to wrap in BF16_Optimizer, where the job requests it; if not, rank 0 says why ZeRO-1 stays off."""
    if not engine.zero_optimization():
        return False
    name = type(optimizer).__name__
    if not computes_by_element(optimizer):
        why = f"{name}, or what is hooked to it, may need whole parameters; if it does not, set ZeRO stage 2"
    elif engine.pipeline_parallelism:  # its ranks hold different parameters, but all must decide alike
        ran(__name__)
        return True
    elif any(getattr(module, "sparse", False) for module in engine.module.modules()):
        why = "a module has sparse gradients"
    elif not all(p.requires_grad for group in optimizer.param_groups for p in group["params"]):
        why = f"{name} has frozen parameters; pass it the trainable ones only"
    else:
        if engine.gradient_accumulation_steps() > 1 or getattr(engine, "dp_world_size", 1) > 1:
            took_effect(__name__, "ZeRO-1 and accumulation in fp32 were on (unpatched: off)")
        ran(__name__)
        return True
    if engine.global_rank == 0:
        from dsfix.log import warn

        warn(
            "bf16_zero1_silently_off: ZeRO-1 stays off, as without dsfix (nothing is partitioned, and gradients "
            f"accumulate in bf16): {why}"
        )
    return False


def computes_by_element(optimizer: Any) -> bool:
    """Whether it is known to compute the same on parts of parameters: exactly one of these classes, unhooked."""
    import sys

    import torch
    from deepspeed.ops import adagrad, adam, lion

    apex = sys.modules.get("apex.optimizers")
    known = (
        *(getattr(torch.optim, name, None) for name in _OF_TORCH),
        *(getattr(module, name, None) for module, names in ((adam, _ADAMS), (lion, _LIONS)) for name in names),
        adagrad.DeepSpeedCPUAdagrad,
        getattr(apex, "FusedAdam", None),
    )
    step = vars(optimizer).get("step")  # a schedule of torch counts the calls of it
    counted = getattr(step, "_wrapped_by_lr_sched", False) or getattr(step, "_with_counter", False)
    return (
        type(optimizer) in known
        and (step is None or counted)
        and not any(vars(optimizer).get(f"_optimizer_step_{when}_hooks") for when in ("pre", "post"))
    )


def take(optimizer: Any) -> None:
    """Take over what a script has done to the gradients since `show`: set to None, written to, or nothing."""
    for group, gradients, has in _groups(optimizer):
        for parameter, gradient, had in zip(group, gradients, has):
            shown = parameter.__dict__.pop(_SHOWN, None)
            if parameter.grad is None:
                if had:  # DeepSpeed itself sets none of these to None
                    gradient.zero_()
            elif shown is not None:
                if parameter.grad is not shown[0] or parameter.grad._version != shown[1]:
                    gradient.copy_(parameter.grad.detach().reshape(gradient.shape))
                parameter.grad.detach().zero_()


def show(engine: Any) -> None:
    """After a backward pass, put the sums so far into `.grad`, where scripts read, clip or write them."""
    import torch

    if engine.pipeline_parallelism:  # which reduces later
        return
    averaged = engine.is_gradient_accumulation_boundary()
    for group, gradients, has in _groups(engine.optimizer):
        for number, parameter in enumerate(group):
            if not (has[number] or (averaged and parameter.requires_grad)):
                continue
            has[number] = True
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.detach().copy_(gradients[number].view(parameter.shape))
            setattr(parameter, _SHOWN, (parameter.grad, parameter.grad._version))


def _groups(optimizer: Any) -> Iterator[tuple[Any, Any, Any]]:
    return zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients, optimizer.fp32_groups_has_gradients)


def begin_step(optimizer: Any) -> None:
    take(optimizer)
    for has_gradients in optimizer.fp32_groups_has_gradients:
        has_gradients[:] = [True] * len(has_gradients)  # unused on this rank: the other ranks' gradient, or zeros


PATCH = Patch(
    title="bf16 + ZeRO-1 + gradient accumulation in fp32: nothing is partitioned, gradients accumulate in bf16",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.6,<0.18.5"},
    changes=(
        Edit(
            f"{_ENGINE}._configure_optimizer",
            after="optimizer_wrapper = self._do_optimizer_sanity_check(basic_optimizer)",
            code="partitioned = optimizer_wrapper == BFLOAT16 and is_for(self, basic_optimizer)",
            uses=(is_for,),
        ),
        Edit(
            f"{_ENGINE}._configure_optimizer",
            replace="[FP16, DDP_BFLOAT16]",
            # with ZeRO enabled, the only wrapper of this name is BFLOAT16
            code="([FP16] if partitioned else [FP16, DDP_BFLOAT16])",
        ),
        Edit(
            _INIT,
            after="self.immediate_grad_update = bfloat16_config.immediate_grad_update",
            code="self.immediate_grad_update = True\n"
            "if hasattr(self, 'scale_if_loss'):\n"
            "    from deepspeed.runtime.fp16.loss_scaler import LossScaler\n"
            "    self.custom_loss_scaler, self.external_loss_scale = False, None\n"
            "    self.torch_autocast_gradscaler, self.loss_scaler = None, LossScaler(scale=1.0)",
        ),
        Edit(
            f"{_BF16}._update_hp_grad",
            before="hp_grad.data.add_(lp.grad.data.to(hp_grad.dtype).view(hp_grad.shape))",
            # a backward pass without the engine has added to the sum in `.grad`
            code=f"if lp.__dict__.pop('{_SHOWN}', None) is not None:\n    hp_grad.zero_()",
        ),
        Edit(f"{_BF16}._update_hp_grad", replace="if clear_lp_grads:\n    ...", code="lp.grad.zero_()"),
        *(
            Edit(f"{_BF16}.{name}", before=statement, code="take(self)", uses=(take,))
            for name, statement in (
                ("clear_lp_grads", "zero_grads_list = []"),
                ("get_grads_for_reduction", "if self.has_moe_layers:\n    ..."),
            )
        ),
        Edit(
            f"{_BF16}.step",
            after="if closure is not None:\n    ...",
            code="begin_step(self)",
            uses=(begin_step,),
        ),
        Edit(
            f"{_ENGINE}._backward_epilogue",
            before="see_memory_usage('Engine after backward', force=self.memory_breakdown())",
            code=f"if isinstance(self.optimizer, BF16_Optimizer):\n    from {__name__} import show\n    show(self)",
        ),
        Edit(
            f"{_ENGINE}._backward_prologue",
            before="see_memory_usage('Engine before backward', force=self.memory_breakdown())",
            # through 0.18.2 only engine.backward() calls it, and a pipeline calls it itself
            code="if isinstance(self.optimizer, BF16_Optimizer) and not (\n"
            "        self.pipeline_parallelism or getattr(self, '_running_engine_backward', True)):\n"
            "    raise RuntimeError('call engine.backward(loss): BF16_Optimizer takes no part in loss.backward()')",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7515": "introduced in 0.17.6",
        "https://github.com/deepspeedai/DeepSpeed/pull/7788": "fixed in 0.18.5",
        "https://github.com/deepspeedai/DeepSpeed/pull/7985": "related: the order of reducing and adding (0.19.0)",
    },
    fixed_in="0.18.5",
    present=(Source("deepspeed.runtime.constants", "DDP_BFLOAT16 = 'bf16'"),),
    fixed=(
        Source("deepspeed.runtime.constants", "DDP_BFLOAT16 = 'ddp_bf16'"),
        Source(_INIT, "self.custom_loss_scaler = False"),
    ),
    ranks=2,
    config=lambda job: job.stage == 1 and job.may_be("bf16") and job.fp32_gradients,
)

_LEARNING_RATE = 0.05
_MICRO_BATCHES = 16  # enough for bf16 sums to differ


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    models = lab.models
    from .. import _half as half

    batches = [[models.regression_batch(rank, i) for i in range(_MICRO_BATCHES)] for rank in range(lab.world_size)]
    expected = half.sgd_weights(batches[0] + batches[1], _LEARNING_RATE)
    own = half.zero1_sgd_weights(lab, batches[lab.rank], _LEARNING_RATE)
    difference = half.zero1_difference(lab, own, expected)
    alone = half.sgd_weights(batches[lab.rank], _LEARNING_RATE)
    if half.zero1_difference(lab, own, alone) < 1e-5 < difference:
        raise CannotTell("another bug of this release: BF16_Optimizer reduces no gradients at all (through 0.13.2)")
    held = f"each of {lab.world_size} ranks holds {own.numel()} of {expected.numel()} fp32 weights"
    done = f"after one step of {_MICRO_BATCHES} micro-batches"
    if own.numel() == expected.numel() and 1e-5 < difference < 0.1:
        raise BugPresent(f"{held}; {done} with sums in bf16 they are off by {difference:.1e}")
    assert own.numel() < expected.numel(), held
    assert difference < 1e-5, f"{done} the weights are off by {difference:.1e}"
    return f"{held}; {done} they match plain PyTorch within {difference:.1e}"
