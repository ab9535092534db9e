"""Hand-written explanations of jobs that are worse, or do not match plain PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dsfix.versions import satisfies
from matrix.bystanders.comparison import Verdict
from matrix.bystanders.space import Job


@dataclass(frozen=True)
class Explanation:
    """Applies where all conditions hold: scenarios (none: all), states, levels (factor -> required levels), releases,
    patches (judged alone; "" for all of them together) and why (a prefix of the verdict's sentence)."""

    id: str
    text: str
    scenarios: Collection[str]
    states: Collection[str] = ("other",)
    levels: Mapping[str, Collection[str]] = field(default_factory=dict)
    releases: str = ""
    patches: Collection[str] = ()
    why: str = ""

    def fits(self, job: Job, release: str, found: Verdict, patch_id: str) -> bool:
        return (
            (not self.scenarios or job.scenario.name in self.scenarios)
            and found.state in self.states
            and all(job.setting[factor] in levels for factor, levels in self.levels.items())
            and satisfies(self.releases, release)
            and (not self.patches or patch_id in self.patches)
            and found.why.startswith(self.why)
        )


_FROZEN_AND_THAWED = (
    *("block_wise", "by_turns", "by_turns_resumed", "ends_and_one_block", "frozen_before_thawed_later"),
    *("frozen_later", "gradual_unfreezing", "groups_by_turns", "written_then_thawed"),
)

_SAME_RESULTS = "the results are the same, and "

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "several-backwards",
        "ZeRO-1 and ZeRO-2 lose gradients, or count them twice, if engine.backward() is called several times before a "
        "step. zero12_several_backwards_drop and, with offload, zero12_offload_several_backwards_drop fix this. They "
        "are off unless DSFIX_ALSO names them: whether a script discards a pass on purpose cannot be detected.",
        (
            *("cached_gradients", "forwards_first", "loss_twice", "several_backwards"),
            *("some_discarded_by_hand", "two_heads", "two_losses"),
        ),
        levels={"stage": ("1", "2")},
    ),
    Explanation(
        "gradients-of-scripts",
        "BF16_Optimizer steps with its own fp32 gradients: changes that a script makes to `.grad` before a step are "
        "lost.",
        ("clipped_by_torch", "discarded_in_place", "rows_masked"),
        levels={"precision": ("bf16, fp32 accumulation",)},
    ),
    Explanation(
        "second-expert-of-evaluations",
        "The third of four passes is an evaluation: moe_eval_random does not draw its second expert by chance.",
        ("two_of_experts", "two_of_experts_on_two_ranks"),
        states=("worse",),
        patches=("", "moe_eval_random", "moe_eval_random_before_0_14_0"),
        why="not the same: [bits] pass 2",
    ),
    Explanation(
        "zero3-weights-alone",
        "ZeRO-3 stores the weights in the optimizer's files: with load_module_only nothing is loaded.",
        ("warm_start",),
        levels={"stage": ("3",)},
    ),
    Explanation(
        "module-only-before-0.13.0",
        "Through 0.12.6 ZeRO-1 and ZeRO-2 load the optimizer's states although load_module_only asks for the weights "
        "alone, unless load_optimizer_states=False is passed as well.",
        ("warm_start",),
        levels={"stage": ("1", "2")},
        releases="<0.13.0",
    ),
    Explanation(
        "schedule-loaded-without-rate",
        "A new schedule sets its first rate, and loading its state does not change it: the optimizer keeps that rate "
        "until the next step(), unless its own state, loaded afterwards, includes a rate.",
        ("warmup_by_hand_resumed", "warmup_resumed_elastic"),
    ),
    Explanation(
        "pipeline-bf16-resumed",
        "BF16_Optimizer, which a bf16 pipeline uses even without ZeRO, is given one state where it expects one per "
        "rank.",
        ("pipeline_resumed",),
        levels={"stage": ("0",), "precision": ("bf16",)},
    ),
    Explanation(
        "zero3-bucket-left-full",
        "After an interrupted backward pass ZeRO-3's bucket still holds parameters whose gradients zero_grad() has "
        "cleared.",
        ("stumble_half_way_in_backward",),
        levels={"stage": ("3",)},
    ),
    Explanation(
        "groups-refused",
        "An optimizer state with a different number of groups is refused.",
        ("evaluated_with_other_groups",),
    ),
    Explanation(
        "zero2-zero-grad-within-a-round",
        "ZeRO-2's zero_grad() keeps what earlier micro-batches have accumulated in `all_grad_tensors`.",
        ("back_from_within_a_round",),
        levels={"stage": ("2",), "offload": ("none",)},
    ),
    Explanation(
        "zero3-several-backwards-in-a-hook",
        "If a hook runs several backward passes within an outer one, ZeRO-3 keeps only the last one's gradients.",
        ("cached_loss",),
        levels={"stage": ("3",)},
    ),
    Explanation(
        "zero3-differentiated-before",
        "Since 0.18.3 torch.autograd.grad ends a backward pass of ZeRO-3, so that the first backward pass of a round "
        "adds to the gradients of the previous round.",
        ("adversarial_inputs",),
        levels={"stage": ("3",)},
        releases=">=0.18.3",
    ),
    Explanation(
        "bf16-without-zero-before-0.17.6",
        "Through 0.17.5, bf16 without ZeRO uses BF16_Optimizer. It trains the parameters that were not frozen at "
        "deepspeed.initialize, and continues to train those frozen later. It accumulates its own fp32 gradients, which "
        "changes to `.grad` do not affect. When loading a checkpoint it expects its own files.",
        (
            *_FROZEN_AND_THAWED,
            *("back_from_within_a_round", "clipped_by_torch", "discarded_by_hand", "rows_masked", "warm_up_by_engine"),
            "fp32_evaluated_in_bf16",
        ),
        levels={"stage": ("0",), "precision": ("bf16",)},
        releases="<0.17.6",
    ),
    Explanation(
        "zero1-averaged-before-0.17.6",
        "Through 0.17.5, ZeRO-1 accumulates what it averages at the end of each backward pass, and ZeRO-2 keeps the "
        "gradients of a backward pass that no step followed; neither zero_grad() nor `.grad = None` clears them.",
        (
            *("discarded_by_hand", "discarded_by_module", "discarded_inside_by_engine", "discarded_inside_by_hand"),
            *("discarded_inside_by_module", "discarded_inside_by_optimizer", "discarded_inside_to_zero"),
            *("discarded_by_engine", "discarded_to_none", "discarded_to_zero", "warm_up_by_hand", "warm_up_by_module"),
        ),
        levels={"stage": ("1", "2")},
        releases="<0.17.6",
    ),
    Explanation(
        "warmup-to-0.001-before-0.17.2",
        "Through 0.17.1, WarmupLR warms up to 0.001 if warmup_max_lr is not set; later releases, to the optimizer's "
        "own rate.",
        ("warmup_to_one_rate",),
        releases="<0.17.2",
    ),
    Explanation(
        "bf16-not-checked-before-0.17.1",
        "Through 0.17.0, bf16 has no check_grad_overflow: the step is made, and the weights become nan.",
        ("infinite_loss_in_bf16",),
        levels={"precision": ("bf16",)},
        releases="<0.17.1",
    ),
    Explanation(
        "several-sub-groups-into-one",
        "A universal checkpoint with several sub-groups is refused if ZeRO-3 has one. universal_checkpoint_subgroups "
        "makes the conversion possible; universal_checkpoint_load_subgroups is for engines with several.",
        ("universal_on_more_ranks",),
        levels={"stage": ("3",)},
        releases="<0.18.0",
    ),
    Explanation(
        "half-trains-what-was-not-frozen-at-first",
        "Since 0.19.1, fp16 and bf16 without ZeRO train the parameters that were not frozen at deepspeed.initialize: "
        "those unfrozen later are never trained, and those frozen later are still updated. fp16_step_at_initialization "
        "corrects the first steps, so that the error of the later ones differs and can be larger.",
        _FROZEN_AND_THAWED,
        ("other", "worse"),
        {"stage": ("0",), "precision": ("bf16", "fp16")},
        ">=0.19.1",
    ),
    Explanation(
        "differentiated-outputs-divided",
        "Since 0.19.6 engine.backward() divides the loss by the accumulation steps, and gradients that "
        "torch.autograd.grad computes from an output are divided as well: a penalty on them is too small.",
        ("gradient_norm_penalty",),
        releases=">=0.19.6",
    ),
    Explanation(
        "rates-written-into-tensors",
        "Since 0.19.4 DeepSpeed's schedules write each group's rate into the tensor that the group has: of a tensor "
        "that several groups have in common the last one's rate counts, and one of integers gets no fraction.",
        ("tensor_rates_of_integers", "tensor_rates_warmup_shared"),
        releases=">=0.19.4",
    ),
    Explanation(
        "offload-skips-in-fp32",
        "Since 0.19.8 ZeRO-1 and ZeRO-2 with optimizer offload skip steps with inf or nan gradients in fp32 as well, "
        "where plain PyTorch's weights become nan.",
        ("nan_loss_in_fp32",),
        levels={"stage": ("1", "2"), "offload": ("optimizer",)},
        releases=">=0.19.8",
    ),
    Explanation(
        "kept-by-zero2",
        "ZeRO-2 has reduced a micro-batch's gradients when the script discards them, and keeps them elsewhere than in "
        "`.grad`.",
        ("branch_discarded",),
        levels={"stage": ("2",)},
    ),
    Explanation(
        "differentiated-outputs-refused",
        "0.18.3 and 0.18.4 mistake torch.autograd.grad on an output for loss.backward(), which this optimizer refuses; "
        "with bf16_zero1_silently_off the message differs.",
        ("gradient_norm_penalty",),
        releases=">=0.18.3,<0.18.5",
    ),
    Explanation(
        "overflow-exchanged",
        "fp16_zero1_overflow_deadlock: the ranks exchange the overflow flag, one byte per step, as DeepSpeed does "
        "through 0.17.0 and since 0.18.0.",
        (),
        ("worse",),
        {"stage": ("1",), "precision": ("fp16", "bf16")},
        ">=0.17.1,<0.18.0",
        ("", "fp16_zero1_overflow_deadlock"),
        "the same numbers with +",
    ),
    Explanation(
        "accumulated-as-from-0.18.3-on",
        "The bug of zero2_accumulation_drops_microbatches; it has no PyTorch reference. With the patch the results "
        "are bitwise those of 0.18.9, where zero_grad() does not discard what ZeRO-2 has accumulated in a round.",
        ("experts_short_of_room", "first_pass_zero2_by_optimizer"),
        ("worse",),
        {"stage": ("2",), "offload": ("none",)},
        ">=0.17.6,<0.18.3",
        ("", "zero2_accumulation_drops_microbatches"),
    ),
    Explanation(
        "experts-norm-summed",
        "The bug of experts_clipped_by_averaged_norms; it has no PyTorch reference. The results of "
        "experts_of_two_ranks, which has one, are those of PyTorch.",
        ("experts_on_two_ranks", "experts_short_of_room"),
        ("worse",),
        {"stage": ("0",), "precision": ("fp32",), "clipping": ("on",)},
        ">=0.14.1",
        ("", "experts_clipped_by_averaged_norms"),
    ),
    Explanation(
        "first-step-as-from-0.13.2-on",
        "zero_step_at_initialization makes the difference; it has no PyTorch reference. With it the results are "
        "those of 0.18.9 within rounding, as far as the job gets.",
        (
            *("first_pass_zero2_by_hand", "first_pass_zero2_by_module", "first_pass_zero2_by_optimizer"),
            *("some_discarded_by_hand", "universal_within_a_round", "hpz_quantized", "first_discarded_zero2"),
        ),
        ("worse",),
        releases="<0.13.2",
        patches=("", "zero_step_at_initialization"),
    ),
    Explanation(
        "autocast-unknown",
        "This release does not know torch_autocast: the job trains in fp32, without a PyTorch reference, and "
        "zero_step_at_initialization makes the difference, as in the jobs in fp32 that have one.",
        ("autocast_in_bf16",),
        ("worse",),
        releases="<0.13.2",
        patches=("", "zero_step_at_initialization"),
    ),
    Explanation(
        "steps-not-clipped-before-0.13.2",
        "BF16_Optimizer ignores torch's clipping, with and without dsfix. zero_step_at_initialization gives AdamW's "
        "first steps their full size, which makes the error larger.",
        ("clipped_by_torch",),
        ("worse",),
        {"stage": ("0",), "precision": ("bf16",)},
        "<0.13.2",
        ("", "zero_step_at_initialization"),
    ),
    Explanation(
        "elastic-adam-before-0.13.2",
        "elastic_checkpoint_scalar_step lets Adam save its state, but releases through 0.13.1 cannot load it: they "
        "treat `step` as partitioned.",
        ("elastic_adamw",),
        releases="<0.13.2",
    ),
    Explanation(
        "elastic-blocks-refused",
        "Since 0.13.2 an elastic checkpoint gives each rank an even number of a state's elements, which an optimizer "
        "with an odd number refuses. Through 0.15.4, with torch 2.6 or later, loading fails before that without "
        "checkpoint_weights_only.",
        ("elastic_blocks",),
        ("worse",),
        releases="<0.16.0",
        patches=("", "checkpoint_weights_only"),
        why="RuntimeError: The size of tensor a",
    ),
    Explanation(
        "universal-zero3-before-0.14.5",
        "ZeRO-3 supports universal checkpoints since 0.14.5; without the patches the job fails earlier.",
        ("universal_frozen", "universal_tied"),
        levels={"stage": ("3",)},
        releases="<0.14.5",
    ),
    Explanation(
        "universal-without-optimizer-before-0.13.2",
        "Through 0.13.1 load_checkpoint with load_optimizer_states=False loads nothing of a universal checkpoint but, "
        "from 0.12.3 on, the count of steps; since 0.14.1 it loads the optimizer's states nevertheless.",
        ("universal_with_mpu_weights",),
        releases="<0.13.2",
    ),
    Explanation(
        "hooks-lost-before-0.13.2",
        "Through 0.13.1, on the emulated device, a parameter loses hooks registered before deepspeed.initialize.",
        ("parameter_hooks",),
        releases="<0.13.2",
    ),
    Explanation(
        "gradients-of-inputs",
        "A bug of DeepSpeed without a patch: on 0.18.9 and later (0.18.3 is right), after torch.autograd.grad of the "
        "model's input between two steps, ZeRO-3's next steps are wrong.",
        ("input_gradients_in_evaluation",),
        levels={"stage": ("3",)},
        releases=">0.18.3",
    ),
    Explanation(
        "persimmon-order",
        "A bug of DeepSpeed without a patch: AutoTP divides the fused weight of Persimmon, and of Falcon's own code, "
        "in the order of others whose layer is a DecoderLayer. 0.13.2 to 0.13.4 find no name, and divide it in its own "
        "order by mistake.",
        ("sharded_persimmon", "sharded_decoder_by_heads", "sharded_decoder_by_groups"),
    ),
    Explanation(
        "discarded-unseen",
        "Off unless DSFIX_ALSO names it, because it cannot detect what module.zero_grad() or `.grad = None` discards.",
        (
            *("discarded_by_hand", "discarded_by_module", "warm_up_by_hand", "warm_up_by_module"),
            *("first_pass_zero2_by_hand", "first_pass_zero2_by_module"),
        ),
        ("worse",),
        patches=("zero12_offload_several_backwards_drop", "zero2_offload_several_backwards"),
    ),
    Explanation(
        "muon-accumulated",
        "The job has the bug of zero2_accumulation_drops_microbatches. Nothing in PyTorch is its reference.",
        ("muon_momentum_cast",),
        ("worse",),
        levels={"stage": ("2",), "accumulation": ("2", "3")},
        releases=">=0.17.6,<0.18.3",
    ),
    Explanation(
        "probe-read",
        "ZeRO-3 loses the first gradient of two backward passes after one forward pass. Where the script reads `.grad` "
        "in between, zero3_two_losses_one_forward cannot know whether it discards it: it stays lost, with a warning.",
        ("probe_kept",),
        levels={"stage": ("3",)},
        releases=">=0.18.5",
    ),
    Explanation(
        "told-but-not-noted",
        "The script notes nothing of what the patch changed: hooks, buffers, types, files, or a count of steps.",
        (
            *("evaluated_with_other_groups", "fp32_evaluated_in_bf16", "hooks_left", "loco_errors"),
            *("pickled_schedules", "pipeline_called_before", "state_not_to_be_told"),
            *("two_of_experts", "two_of_experts_on_two_ranks"),
        ),
        why=_SAME_RESULTS,
    ),
    Explanation(
        "told-but-not-for-long",
        "The frequencies that the patch keeps are replaced by the checkpoint's, which are in half precision.",
        ("resumed_with_half_frequencies",),
        why=_SAME_RESULTS,
    ),
    Explanation(
        "told-but-scale-free",
        "LARS divides gradients by their norm: without the patches that multiply the loss by the scale and divide the "
        "norm by it, the steps are the same.",
        ("lars",),
        levels={"stage": ("0",), "precision": ("fp16",)},
        why=_SAME_RESULTS,
    ),
)


def of(job: Job, release: str, found: Verdict, patch_id: str) -> list[Explanation]:
    """The explanations that apply. patch_id: the patch judged alone, "" for all patches."""
    return [each for each in EXPLANATIONS if each.fits(job, release, found, patch_id)]
