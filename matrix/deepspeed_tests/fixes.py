"""Hand-written list of upstream fixes with regression tests, which fail on older releases without dsfix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from dsfix.catalogue.registry import catalogue


@dataclass(frozen=True)
class Fix:
    """A pull request and the tests that came with it, as prefixes of ids.

    release: the first one with the fix. patches: those that make the tests pass on older releases.
    """

    request: int
    release: str
    tests: tuple[str, ...]
    patches: tuple[str, ...] = ()


_ZERO = "unit/runtime/zero"
_ZERO_V1 = "unit/v1/zero"
_ACCUMULATION = "TestZeroUserBackwardGradAccumulation"
_COPY = "test_allreduce_and_copy"
_SCHEDULERS = "unit/runtime/test_lr_schedulers.py"
_UNIVERSAL = "unit/checkpoint/test_universal_checkpoint.py::TestZeROUniversalCheckpointDP"

#: test ids are those of the newest tag
FIXES: tuple[Fix, ...] = (
    Fix(6597, "0.15.3", (f"{_SCHEDULERS}::TestGetLrBeforeTrain",), ("warmup_first_step", "warmup_cosine_first_step")),
    Fix(
        7018,
        "0.16.5",
        ("unit/runtime/test_multiple_models.py::TestMultipleModels::test_bf16_optimizer",),
        ("bf16_retain_graph_dropped",),
    ),
    Fix(
        7585,
        "0.18.0",
        # ZeRO-3 with sub-groups, in fp32; the others are skipped on the CPU
        (f"{_UNIVERSAL}::test_dp_world_size_2to2[100-True-False-3-dtype2",),
        ("universal_checkpoint_subgroups", "universal_checkpoint_load_subgroups"),
    ),
    Fix(
        7707, "0.18.3", ("unit/checkpoint/test_zero_optimizer.py::TestZeROPPLoadCheckpoint",), ("hpz_stale_secondary",)
    ),
    Fix(
        7724,
        "0.18.4",
        (f"{_ZERO_V1}/test_zero_user_backward.py::{_ACCUMULATION}::test_grad_accumulation_scale_wrt_gas_false",),
        ("scale_wrt_gas_ignored",),
    ),
    Fix(
        7780,
        "0.18.5",
        (f"{_ZERO_V1}/test_zero_user_backward.py::TestZeroUserBackwardWithCheckpointing",),
        ("zero3_two_losses_one_forward",),
    ),
    Fix(
        7839,
        "0.18.6",
        ("unit/runtime/half_precision/test_dynamic_loss_scale.py::TestBf16ZeRO0UnfusedOptimizer",),
        ("bf16_stage0_no_update",),
    ),
    Fix(
        7948,
        "0.19.0",
        (
            f"{_ZERO_V1}/test_stage2_flatten_on_gpu.py::TestStage2FlattenOnGPU::test_flatten_on_accelerator_training_step",
        ),
        ("cpu_zero12_split_view",),
    ),
    Fix(
        8141,
        "0.19.3",
        (
            f"{_ZERO_V1}/test_overlap_comm_record_stream.py::{_COPY}_with_multiple_ranks_records_consumer_buffers",
            "unit/ops/muon/test_muon.py::TestMuonZero12NumericalCorrectness",
        ),
        ("muon_reduce_scatter",),
    ),
    Fix(7965, "0.19.0", (f"{_ZERO_V1}/test_overlap_comm_record_stream.py::{_COPY}",)),
    Fix(7967, "0.19.0", (f"{_ZERO_V1}/test_zero_cpu_offload_grad_accum.py",), ("zero2_offload_accumulation_drops",)),
    Fix(
        7969,
        "0.19.0",
        (f"{_SCHEDULERS}::test_warmup_cosine_lr_initializes_all_param_groups",),
        ("warmup_cosine_first_step",),
    ),
    Fix(
        7981,
        "0.19.0",
        (f"{_ZERO_V1}/test_zero2_offload_multi_backward.py",),
        # the last patch is for the test with several micro-batches
        (
            "zero12_offload_several_backwards_drop",
            "zero2_offload_several_backwards",
            "zero2_offload_accumulation_drops",
        ),
    ),
    Fix(
        7985,
        "0.19.0",
        (f"{_ZERO_V1}/test_zero.py::TestBF16OptimizerGradReduction",),
        ("bf16_zero1_last_microbatch_local",),
    ),
    Fix(
        8007,
        "0.19.1",
        ("unit/moe/test_moe.py::TestTopkGate", "unit/v1/moe/test_moe.py::TestTopkGate"),
        ("moe_topk_probs_drops_routes",),
    ),
    Fix(8009, "0.19.1", (f"{_ZERO}/test_zero_late_module_attach.py",), ("zero3_late_attached_module",)),
    Fix(8043, "0.19.2", (f"{_ZERO}/test_unwrap_model.py::TestUnwrapModelTraceInvalidate",)),
    Fix(8080, "0.19.3", (f"{_ZERO_V1}/test_overlap_comm_record_stream.py",)),
    Fix(8144, "0.19.3", (f"{_ZERO}/test_zero_hook_attribute_delegation.py",), ("zero3_delegating_wrapper",)),
    Fix(8142, "0.19.3", (f"{_SCHEDULERS}::test_warmup_cosine_lr_total_num_steps_equals_warmup",)),
    Fix(
        8148,
        "0.19.3",
        (
            f"{_ZERO_V1}/test_zero_activation_checkpoint_lifecycle.py",
            f"{_ZERO_V1}/test_zero_user_backward.py::TestZeroUserBackwardFrozenParamCheckpointing",
            f"{_ZERO_V1}/test_zero_user_backward.py::TestZeroFrozenParam",
        ),
        # their cases with ZeRO-1 and ZeRO-2 need the last patch
        ("zero3_checkpoint_recompute", "zero3_checkpoint_params_stay_gathered", "cpu_zero12_split_view"),
    ),
    Fix(
        8154,
        "0.19.3",
        ("unit/runtime/pipe/test_pipe.py::TestPipeGradientAccumulationScaling",),
        ("pipeline_accumulation_scaled_per_stage",),
    ),
    Fix(8155, "0.19.4", ("unit/v1/moe/test_moe.py::test_top",)),
    Fix(8158, "0.19.4", (f"{_ZERO}/test_zero_allreduce_fetch_params.py",), ("zero3_allreduce_fetch_padding",)),
    Fix(8171, "0.19.4", (f"{_SCHEDULERS}::test_warmup_lr_inherits_per_group_lr",), ("warmup_group_rates",)),
)


def of(test: str, known: Sequence[Fix] | None = None) -> Fix | None:
    """The fix that the test came with, or None."""
    fixes = FIXES if known is None else known
    return next((fix for fix in fixes if test.startswith(fix.tests)), None)


def lacking(test: str, release: str) -> bool:
    """Whether the test came with a fix that the release does not have."""
    fix = of(test)
    return fix is not None and Version(release) < Version(fix.release)


def patches(test: str) -> tuple[str, ...]:
    fix = of(test)
    return fix.patches if fix is not None else ()


def enabled() -> list[str]:
    """The patches to enable for the tests of fixes: those on by default, and all patches of fixes."""
    needed = {patch for fix in FIXES for patch in fix.patches}
    return [name for name, entry in catalogue().items() if entry.patch.default or name in needed]


def files() -> list[str]:
    """The files with the tests of all fixes."""
    return list(dict.fromkeys(test.partition("::")[0] for fix in FIXES for test in fix.tests))
