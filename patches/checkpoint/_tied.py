"""Weights that share memory, as tied ones do, in files of safetensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab


def unshare(tensors: dict[str, Any], patch: str) -> None:
    """Replace those that overlap another one in memory by copies. The parts of one flat tensor do not."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda each: each[1].data_ptr()):
        begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if size and begin < end:
            took_effect(patch, "a tied weight was written under each of its names (unpatched: RuntimeError)")
            tensors[name] = tensor.clone()
        end = max(end, begin + size)


def convert_tied(lab: Lab) -> str:
    """The reproduction: checkpoints of a model with tied weights, converted to safetensors."""
    from ._checkpoints import load_whole_files, train

    load_whole_files()
    torch, version = lab.torch, lab.deepspeed.__version__
    from deepspeed.utils import zero_to_fp32  # type: ignore[import-not-found,unused-ignore]

    convert = zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict
    if "safe_serialization" not in convert.__code__.co_varnames:
        raise CannotTell(f"deepspeed {version} does not write safetensors")
    try:
        from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise CannotTell("needs safetensors") from None
    for stage in (2, 3):
        model = lab.models.MLP()
        model.blocks[1][0].weight = model.blocks[0][0].weight
        config = {
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": stage},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        train(lab, engine, [lab.models.regression_batch(rank=0, step=0)])
        root, out = lab.tmp / str(stage), lab.tmp / f"written {stage}"
        engine.save_checkpoint(str(root), tag="saved")
        out.mkdir()
        try:
            convert(str(root), str(out), tag="saved", safe_serialization=True, max_shard_size=None)
        except RuntimeError as error:
            if "Some tensors share memory" in str(error):
                raise BugPresent(f"ZeRO-{stage}: {str(error).strip().partition(':')[0]}") from error
            raise
        written = load_file(out / "model.safetensors")
        right = lab.parameters(engine)
        right["blocks.1.0.weight"] = right["blocks.0.0.weight"]
        difference = lab.reference.largest_difference(written, right)
        assert difference.relative < 1e-6, f"ZeRO-{stage}: {difference}"
        assert torch.equal(written["blocks.0.0.weight"], written["blocks.1.0.weight"])
    return "tied weights of ZeRO-2 and ZeRO-3 checkpoints are written under both names"
