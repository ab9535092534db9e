"""ZeRO-1 to 3: torch.autograd.grad of the model's input crashes or makes the next step wrong.

Why: since 0.18.5 every backward pass through the engine's output ends with the reduction of gradients, also one of
    `torch.autograd.grad`, which leaves none (adversarial training, saliency, penalties on inputs). ZeRO-1 and 2 then
    fail: "IndexError: list index out of range". ZeRO-1 with gradient accumulation loses micro-batches instead. ZeRO-3
    counts the pass as a micro-batch: the next one no longer overwrites the gradients of the previous step, but is added
    to them; in adversarial training this adds up the gradients of all steps. With fp16, "Loss scaling is required".
How: a backward pass that is restricted to tensors other than trained parameters (the same on all ranks), and has not
    run any parameter's hook, reduces nothing and needs no loss scaling, as through 0.18.4. `backward()` without
    `inputs` is unchanged. Not covered: ZenFlow, passes through ZeRO-3's leaf modules, and the division of the returned
    gradient by `gradient_accumulation_steps`.
Changes: for jobs that call `torch.autograd.grad` on an output of the engine, or `backward(inputs=...)` without
    parameters: steps become the same as in plain PyTorch. All others are bit-identical. A checkpoint written without
    the patch loads; its parameters and moments come from wrong gradients.
Workaround: Scripts call `engine.module`, and not the engine, for gradients of inputs. You can keep it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran, took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_STATE = "deepspeed.runtime.base_optimizer:BackwardHookStateManager"
_MESSAGE = "list index out of range"


def leaves_no_gradient(engine: Any) -> bool:
    """Whether the backward pass that begins is restricted to tensors other than trained parameters.

    False for ZenFlow, and if backward passes inside the forward pass have left gradients to reduce.
    """
    import torch

    if not _restricted() or engine.zenflow or engine.optimizer._backward_hook_state.hooks_fired_this_backward:
        return False
    node_of = torch.autograd.graph._get_grad_fn_or_grad_acc
    with torch.enable_grad():
        nodes = [node_of(parameter) for parameter in engine.module.parameters() if parameter.requires_grad]
    return not any(_executes(node) for node in nodes)


def _restricted() -> bool:
    import torch

    if torch._C._current_graph_task_id() == -1:  # compiled autograd
        return False
    whole: Any = torch.autograd._is_checkpoint_valid
    if not whole():
        return True
    # also True in the hooks of a tensor that is itself what torch.autograd.grad was asked for
    node = getattr(torch._C, "_current_autograd_node", lambda: None)()
    return node is not None and not all(_executes(each) for each, _ in node.next_functions if each is not None)


def _executes(node: Any) -> bool:
    import torch

    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf whose gradient torch.autograd.grad returns: nothing accumulates
        return False


def left_no_gradient(engine: Any) -> bool:
    """Whether the backward pass that ends was such a pass and has run no parameter's hook."""
    if not engine.__dict__.get("_dsfix_leaves_no_gradient") or engine._running_engine_backward:
        return False
    return not engine.optimizer._backward_hook_state.hooks_fired_this_backward


def begin_anew(engine: Any) -> None:
    """Let the next backward pass of the same forward pass end with a reduction of its own."""
    if _would_reduce(engine):
        took_effect(__name__, "gradients of inputs did not count as a micro-batch (unpatched: counted)")
    ran(__name__)
    engine._dsfix_leaves_no_gradient = False
    engine.optimizer._backward_hook_state.post_backward_callback_queued = False


def _would_reduce(engine: Any) -> bool:
    """Whether this pass would have failed, or would have changed the next step's gradients."""
    stage = engine.zero_optimization_stage()
    if stage == 3:
        micro_batches = getattr(engine.optimizer, "micro_step_id", None)
        return micro_batches == 0 and engine.global_steps > 0 and engine.module.training
    return stage == 2 or bool(engine.is_gradient_accumulation_boundary())


PATCH = Patch(
    title="ZeRO-1 to 3: torch.autograd.grad of the model's input crashes or makes the next step wrong",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.18.5"},
    changes=(
        Edit(
            f"{_ENGINE}._backward_prologue",
            before="self.optimizer.enter_backward()",
            code="self._dsfix_leaves_no_gradient = leaves_no_gradient(self)",
            uses=(leaves_no_gradient,),
        ),
        Edit(
            f"{_ENGINE}._backward_post_hook",
            before="if needs_scaler and not self._manual_backward_expected:\n    ...",
            code="needs_scaler = needs_scaler and not left_no_gradient(self)",
            uses=(left_no_gradient,),
            effect="gradients of inputs needed no loss scaling (unpatched: RuntimeError)",
            when="needs_scaler and not self._manual_backward_expected"
            " and self.__dict__.get('_dsfix_leaves_no_gradient')"
            " and not self.optimizer._backward_hook_state.hooks_fired_this_backward",
        ),
        Edit(
            f"{_ENGINE}._backward_epilogue",
            replace="self.allreduce_gradients()",
            code="if left_no_gradient(self):\n    begin_anew(self)\nelse:\n    self.allreduce_gradients()",
            uses=(left_no_gradient, begin_anew),
        ),
    ),
    symptom=rf"_run_post_backward[\s\S]*reduce_ipg_grads[\s\S]*IndexError: {_MESSAGE}",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7780": "introduced in 0.18.5",
    },
    present=(
        # queued for each backward pass that reaches an output, whatever else it reaches
        Source(f"{_ENGINE}._backward_prologue", "self.optimizer.queue_post_backward_callback()"),
        Source(f"{_STATE}.queue_post_backward_callback", "engine.queue_callback(_run_post_backward)"),
    ),
)

_LEARNING_RATE = 0.1
_STEPS = 3


def reproduce(lab: Lab) -> str:
    return "; ".join(f"stage {stage}: {_train(lab, stage)}" for stage in (3, 1, 2))


def _train(lab: Lab, stage: int) -> str:
    """Train on inputs shifted by the sign of their gradient, which torch.autograd.grad returns."""
    torch = lab.torch
    mse = torch.nn.functional.mse_loss

    def shifted(model: Any, inputs: Any, targets: Any) -> Any:
        inputs = inputs.clone().requires_grad_()
        [gradient] = torch.autograd.grad(mse(model(inputs), targets), [inputs])
        return (inputs + 0.1 * gradient.sign()).detach()

    def loss(model: Any, inputs: Any, targets: Any) -> Any:
        return mse(model(shifted(model, inputs, targets)), targets)

    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    steps = [[batch] for batch in batches]
    model = lab.models.MLP()
    right = lab.reference.train(model, steps, lambda *batch: loss(model, *batch), "SGD", lr=_LEARNING_RATE)
    # momentum 1: each step's update is by the sum of all gradients up to it
    model = lab.models.MLP()
    added = lab.reference.train(model, steps, lambda *batch: loss(model, *batch), "SGD", lr=_LEARNING_RATE, momentum=1)

    model = lab.models.MLP()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": stage},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for inputs, targets in batches:
        inputs, targets = inputs.to(lab.device), targets.to(lab.device)
        try:
            inputs = shifted(engine, inputs, targets)
        except IndexError as error:
            passed = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
            if _MESSAGE in str(error) and {"_run_post_backward", "reduce_ipg_grads"} <= passed:
                raise BugPresent(f"stage {stage}: IndexError: {error}") from error
            raise
        engine.backward(mse(engine(inputs), targets))
        engine.step()
    return lab.reference.compare(
        lab.parameters(engine),
        right.parameters,
        {"those of gradients added to the previous steps'": added.parameters},
        after=f"after {_STEPS} steps",
    )
