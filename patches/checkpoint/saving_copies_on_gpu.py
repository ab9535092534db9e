"""Saving through accelerate or transformers without ZeRO-3 copies each tensor on the GPU first: out of memory.

Why: through 0.15.4 deepspeed.checkpoint.utils.clone_tensors_for_torch_save, which accelerate calls for each model that
    it saves, clones a tensor on its own device and then moves the clone to the CPU. The largest weight, usually the
    embedding, must fit into the GPU's memory a second time, and the clones fragment it.
How: a tensor that is not on the CPU is copied there directly, as in 0.16.0.
Workaround: Scripts move the weights to the CPU before they save them. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CLONE = "deepspeed.checkpoint.utils:clone_tensors_for_torch_save"

PATCH = Patch(
    title="Saving through accelerate or transformers without ZeRO-3 duplicates every tensor on the GPU: out of memory",
    severity=Severity.LEAK,
    affects={"deepspeed": ">=0.12.0,<0.16.0"},
    changes=(
        Edit(
            _CLONE,
            replace="item.detach().clone().to(device)",
            code=(
                'item.detach().to(device) if str(device) == "cpu" != item.device.type '
                "else item.detach().clone().to(device)"
            ),
            effect="tensors were copied straight to the CPU (unpatched: first duplicated on their device)",
            when='str(device) == "cpu" != item.device.type and item.numel() > 0',
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/6761": "fixed in 0.16.0"},
    fixed_in="0.16.0",
    fixed=(Source(_CLONE, "device == item.device"),),
)

_WIDTH, _LEARNING_RATE = 512, 0.5


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    class Model(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(_WIDTH, _WIDTH, bias=False)
            with torch.no_grad():
                self.weight.copy_(torch.arange(_WIDTH * _WIDTH).view(_WIDTH, _WIDTH).remainder(97) / 97 - 0.5)

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 1},
    }
    model = Model()
    start = model.weight.detach().clone()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    inputs = torch.arange(_WIDTH).remainder(13).view(1, _WIDTH).to(lab.device, torch.float32) / 16
    # the gradient is the input in each row: exact
    engine.backward(engine(inputs).sum())
    engine.step()
    from deepspeed.checkpoint.utils import (
        clone_tensors_for_torch_save,
    )

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    saved = clone_tensors_for_torch_save({"model": [engine.module.state_dict()]})["model"][0]["weight"]
    more = torch.cuda.max_memory_allocated() - before
    right = start - _LEARNING_RATE * inputs.cpu()
    if saved.device.type != "cpu" or saved.requires_grad or not torch.equal(saved, right):
        raise AssertionError(f"the saved weights differ by up to {(saved.cpu() - right).abs().max().item():.3g}")
    if saved.untyped_storage().nbytes() != saved.nbytes:
        raise AssertionError(f"{saved.untyped_storage().nbytes()} bytes are saved for {saved.nbytes}")
    on_cpu = clone_tensors_for_torch_save(saved)
    if on_cpu.data_ptr() == saved.data_ptr():
        raise AssertionError("a tensor on the CPU is not copied")
    if more >= saved.nbytes:
        raise BugPresent(f"saving takes {more / 2**20:.1f} MB on the GPU, the weight {saved.nbytes / 2**20:.1f} MB")
    return f"saving takes {more / 2**20:.1f} MB on the GPU, of a weight of {saved.nbytes / 2**20:.1f} MB, and is right"
