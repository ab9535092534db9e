"""The flops profiler leaves some torch functions wrapped when it stops: their operations are counted several times.

Why: the profiler replaces functions of torch with counting ones and restores the originals when it stops, except for
    `scaled_dot_product_attention` and `Tensor.__matmul__`, and `torch.bmm` becomes `torch.matmul`. Each further
    profile, such as of the next micro-batch of a step, wraps these once more: attention is counted twice, then three
    times. All later steps call the wrappers, and torch.bmm accepts shapes that it must reject.
How: when the profiler stops, these three are restored, too, if they still are what the profiler put there.
Changes: the counts from the second profile of a process on. Training and checkpoints do not change.
Workaround: Scripts save the three functions before the profile and put them back after it. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_PROFILER = "deepspeed.profiling.flops_profiler.profiler"
_RELOAD = f"{_PROFILER}:_reload_tensor_methods"


def put_back(old_functions: dict[Any, Any]) -> None:
    """Undo the wrappers that the profiler forgets; not those that another package has replaced since."""
    import torch

    for owner, name in ((torch.nn.functional, "scaled_dot_product_attention"), (torch.Tensor, "__matmul__")):
        wrapped = getattr(owner, name, None)
        if wrapped is not None and wrapped.__str__ in old_functions:
            setattr(owner, name, old_functions[wrapped.__str__])


PATCH = Patch(
    title="The flops profiler leaves attention, @ and bmm wrapped: they are counted again, and later steps are slower",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.6"},
    changes=(
        Edit(
            _RELOAD,
            replace="torch.bmm = old_functions[torch.matmul.__str__]",
            code="torch.bmm = old_functions[torch.bmm.__str__]\nput_back(old_functions)",
            uses=(put_back,),
            effect=RAN,  # what is counted or computed later, nothing shows yet
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7413": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/4724": "introduced for attention and @, in 0.13.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8246": "fixed in 0.19.6",
    },
    fixed_in="0.19.6",
    fixed=(Source(_RELOAD, "torch.bmm = old_functions[torch.bmm.__str__]"),),
    config=lambda job: job.get("flops_profiler", "enabled") is True,
)

_MICRO_BATCHES, _STEPS = 3, 2


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    def functions() -> dict[str, Any]:
        return {
            "F.scaled_dot_product_attention": torch.nn.functional.scaled_dot_product_attention,
            "Tensor.__matmul__": torch.Tensor.__matmul__,
            "torch.bmm": torch.bmm,
        }

    batches = [lab.models.token_batch(rank=0, step=step) for step in range(_STEPS * _MICRO_BATCHES)]
    model = lab.models.Transformer()
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_accumulation_steps": _MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "flops_profiler": {"enabled": True, "profile_step": 1, "output_file": str(lab.tmp / "profile")},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    before, counts = functions(), []
    for position, (tokens, targets) in enumerate(batches):
        logits = engine(tokens.to(lab.device))
        if position >= _MICRO_BATCHES:
            counts.append(engine.flops_profiler.get_total_flops())
        engine.backward(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.to(lab.device).flatten()))
        engine.step()
    left = [name for name, function in functions().items() if function is not before[name]]
    assert counts[0] > 0, counts
    if left == ["torch.bmm"] or (left == list(before) and counts[0] < counts[1] < counts[2]):
        raise BugPresent(f"{', '.join(left)} are not torch's own; flops of equal micro-batches: {counts}")
    assert not left, left
    assert len(set(counts)) == 1, counts
    return f"each of {_MICRO_BATCHES} equal micro-batches has {counts[0]} flops, and torch's functions are its own"
