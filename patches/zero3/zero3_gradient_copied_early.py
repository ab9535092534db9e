"""ZeRO-3: gradients are copied before they are computed: nan, or results that differ from run to run.

Why: each gradient is copied into a bucket, with `overlap_comm` on a separate stream and otherwise on the default
    stream. The copy waits for the default stream, but autograd computes a gradient on the stream of the layer's forward
    pass. If that is a different one, the copy may read memory before the gradient is in it: weights become nan or
    wrong. Reported for torch 2.10. Layers that run on the default stream are not affected, nor are releases before
    0.16.3 with torch 2.13, where autograd runs their hooks on the default stream.
How: the copy waits for the current stream, on which the gradient's hook runs, as in 0.18.8. Where that is the default
    stream, the wait is the same as before.
Changes: the steps in which a gradient was copied too early; all others give the same numbers. A checkpoint written
    without the patch loads, but its weights were trained on such gradients.
Workaround: Scripts run all layers on the default stream, or call `torch.cuda.synchronize()` in a hook of each
    parameter. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_COPY = f"{_OPTIMIZER}.__add_grad_to_ipg_bucket"
_HOOKS = f"{_OPTIMIZER}.create_reduce_and_remove_grad_hooks"
_WAIT = "self.reduce_and_partition_stream.wait_stream(get_accelerator().{}())"

PATCH = Patch(
    title="ZeRO-3: nan or wrong weights, different in each run, with layers that run on other streams",
    severity=Severity.WRONG_RESULT,
    # the wait is the same in earlier releases, whose hooks hang on the node that accumulates a gradient
    affects={"deepspeed": ">=0.16.3,<0.18.8"},
    changes=(
        Edit(
            _COPY,
            replace=_WAIT.format("default_stream"),
            code=_WAIT.format("current_stream"),
            effect="the copy of a gradient waited for the stream that computed it, not for the default stream",
            when="get_accelerator().current_stream() != get_accelerator().default_stream()",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7898": "fixed in 0.18.8"},
    fixed_in="0.18.8",
    present=(
        Source(_HOOKS, "self._grad_acc_hooks.append(register_grad_hook(param, reduce_partition_and_remove_grads))"),
    ),
    fixed=(Source(_COPY, _WAIT.format("current_stream")),),
    ranks=2,
)

_WIDTH, _LEARNING_RATE, _BEFORE = 16, 0.5, 3.0


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    if not lab.emulated:
        raise CannotTell("whether it is copied too early depends on timing, which only the emulated device controls")
    lab.late_streams()
    torch = lab.torch
    side = torch.cuda.Stream()

    class Branch(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.weight = torch.nn.Parameter(torch.randn(_WIDTH, _WIDTH, generator=generator) / 4)

        def forward(self, x: Any) -> Any:
            return x @ self.weight

    class Model(lab.models.MLP):  # type: ignore[misc,name-defined]
        """Computes one layer on another stream."""

        def __init__(self) -> None:
            super().__init__()
            self.branch = Branch()

        def forward(self, x: Any) -> Any:
            if x.device.type == "cpu":
                return super().forward(x + self.branch(x))
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                added = self.branch(x)
            current.wait_stream(side)
            return super().forward(x + added)

    batch = [lab.models.regression_batch(rank, 0) for rank in (0, 1)]
    model = Model()
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    right = lab.reference.train(model, [batch], model.loss, "SGD", lr=_LEARNING_RATE).parameters
    name = "branch.weight"
    early = {name: before[name] - _LEARNING_RATE * _BEFORE}
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": len(batch[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "stage3_param_persistence_threshold": 0},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    inputs, targets = (each.to(lab.device) for each in batch[lab.rank])
    loss = torch.nn.functional.mse_loss(engine(inputs), targets)
    with torch.cuda.stream(side):  # what the gradient's memory holds before the gradient
        torch.full((_WIDTH, _WIDTH), _BEFORE, device=lab.device)
    side.synchronize()
    engine.backward(loss)
    engine.step()
    seen = lab.parameters(engine)
    compare, after = lab.reference.compare, "after one step"
    wrong = {"those of what its memory held before the gradient": early}
    compare({name: seen[name]}, {name: right[name]}, wrong, after=after, what="the weights")
    result: str = compare(seen, right, after=after)
    return result
