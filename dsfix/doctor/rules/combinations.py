"""Combinations of versions that do not work together; `affects` is the whole condition."""

from __future__ import annotations

from typing import Any

from ...rules import Level, Match, Rule

_TORCH_24 = "install torch >= 2.4, or deepspeed <= 0.18.6 (0.18.3 to 0.18.6 also need `import dsfix` with this torch)"


def _combination(
    rule_id: str, level: Level, affects: dict[str, str], what: str, remedy: str, *evidence: str, **fields: Any
) -> Rule:
    def find(facts: Any) -> list[Match]:
        where = ", ".join(f"{name} {facts.versions.get(name)}" for name in affects)
        return [Match(where, f"{where}: {what}")]

    return Rule(rule_id, level, remedy, find, affects, evidence, **fields)


COMBINATIONS = (
    _combination(
        "deepspeed_needs_torch_24",
        Level.ERROR,
        {"deepspeed": ">=0.18.7,<0.19.8", "torch": "<2.4.0.dev0"},
        "`import deepspeed` fails, because torch lacks amp.custom_fwd and library.custom_op",
        _TORCH_24,
        "#7920",
        "ran: `import deepspeed` with torch 2.3.1 works on 0.18.6 and 0.19.8, fails on 0.18.7 to 0.19.7",
        "ran: steps with ZeRO-1 and 3 and torch 2.3.1 work on 0.18.2, and on 0.18.5 only with dsfix",
    ),
    _combination(
        "deepspeed_0198_zero3_needs_torch_24",
        Level.WARNING,
        {"deepspeed": "==0.19.8", "torch": "<2.4.0.dev0"},
        "with ZeRO-3, the first nn.Linear fails with `module 'torch' has no attribute 'get_autocast_dtype'`, and "
        "`import deepspeed.sequence.layer` (Ulysses) fails, because torch lacks library.custom_op",
        f"{_TORCH_24}; for ZeRO-3 alone, zero_optimization.memory_efficient_linear: false is enough",
        "deepspeed/runtime/zero/linear.py of 0.19.8: _get_autocast_dtype; torch/_C/__init__.pyi of 2.3.1 and 2.4.0",
        "ran: 0.19.8 with torch 2.3.1: ZeRO-1 works, ZeRO-3 fails, unless memory_efficient_linear is false; "
        "with torch 2.4.1 both work",
    ),
    _combination(
        "deepspeed_0192_needs_python_310",
        Level.ERROR,
        {"deepspeed": "==0.19.2", "python": "<3.10"},
        "deepspeed.initialize raises TypeError: unsupported operand type(s) for |",
        "install deepspeed >= 0.19.3 or <= 0.19.1, or use Python >= 3.10",
        "#8102",
        "ran: deepspeed/moe/ep_router.py of 0.19.2 on Python 3.9 (TypeError) and 3.10, and of 0.19.3 on 3.9",
    ),
    _combination(
        "trl_calls_renamed_hooks",
        Level.WARNING,
        {"deepspeed": ">=0.16.4", "trl": "<0.16"},
        "with ZeRO-3, generation during training (PPO, GRPO, online DPO) fails with `'DeepSpeedZeRoOffload' object "
        "has no attribute '_register_hooks_recursively'`",
        "install trl >= 0.16, or deepspeed < 0.16.4",
        "huggingface/trl#2962",
        "trl/models/utils.py of v0.15.2 and v0.16.0",
        "deepspeed/runtime/zero/parameter_offload.py of 0.16.3 and 0.16.4",
    ),
    _combination(
        "trainer_no_sync",
        Level.WARNING,
        {"deepspeed": ">=0.16.0", "transformers": ">=4.46,<4.47.1", "accelerate": "<1.9"},
        "with ZeRO-2 or 3, gradient accumulation fails with `no_sync context manager is incompatible with gradient "
        "partitioning`",
        "install transformers >= 4.47.1 or accelerate >= 1.9, or put `import dsfix` on the first line of the script",
        "huggingface/transformers#35157",
        "huggingface/accelerate#3481",
        "transformers/trainer.py of 4.45.2, 4.46.3, 4.47.0 and 4.47.1",
        "accelerate/accelerator.py of v1.8.1 and v1.9.0",
        patches=("no_sync_incompatible",),
    ),
    _combination(
        "accelerate_optimizer_without_train",
        Level.ERROR,
        {"transformers": ">=4.45", "accelerate": ">=0.30,<0.34"},
        "the Trainer's first step fails with `'DeepSpeedZeroOptimizer' object has no attribute 'train'`",
        "install accelerate >= 0.34",
        "hiyouga/LlamaFactory#5400",
        "transformers/trainer.py of 4.44.2 and 4.45.0",
        "accelerate/optimizer.py of v0.29.3, v0.30.0, v0.33.0 and v0.34.0",
    ),
    _combination(
        "peft_loses_modules_to_save",
        Level.WARNING,
        {"deepspeed": ">=0.12.0", "peft": "==0.15.0"},
        "with ZeRO-3, saved adapters may lack the weights of modules_to_save",
        "install peft >= 0.15.1; adapters saved with 0.15.0 may lack these weights",
        "huggingface/peft#2459",
        "huggingface/peft#2453",
    ),
)
