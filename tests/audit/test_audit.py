"""`audit` with a stand-in for the training: reading configs, the search, the text, the JSON, the exit status."""

import importlib.util
import json
import math
import signal
import textwrap
import time

import pytest

from dsfix.audit.agreement import AuditVerdict, Difference
from dsfix.audit.draft import NotAudited, Options
from dsfix.audit.plan import Plan
from dsfix.audit.resolve import ResolvedConfig, resolve
from dsfix.audit.search import Search
from dsfix.check import checking
from dsfix.cli.printing import audit_report as report

BATCH = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3}}
PLAIN = {**BATCH, "gradient_clipping": 1.0, "optimizer": ADAMW}
AUTO = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")


@pytest.fixture
def release(monkeypatch):
    """Reports a release of DeepSpeed as the installed one when a config is read."""

    def use(version):
        monkeypatch.setattr(checking.versions, "installed", {"deepspeed": version}.get)

    use("0.17.6")
    return use


@pytest.fixture
def resolved(release, tmp_path):
    """Writes a config to a file and resolves it."""

    def run(config, name="ds.json", **options):
        path = tmp_path / name
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return resolve(str(path), Options(**options))

    return run


def said(result, words):
    return [note for note in result.notes if words in note]


def zero(result):
    return result.plan.config["zero_optimization"]


# reading a config


def test_config_values_are_kept(resolved):
    kept = {
        "gradient_clipping": 0.5,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
        "bf16": {"enabled": True},
    }
    block = {"stage": 2, "overlap_comm": True, "round_robin_gradients": True, "offload_optimizer": {"device": "cpu"}}
    result = resolved({**BATCH, **kept, "zero_optimization": block})
    assert {name: result.plan.config[name] for name in kept} == kept
    assert {name: zero(result)[name] for name in block} == block
    assert (result.plan.stage, result.plan.precision, result.plan.accumulation) == (2, "bf16", 3)


@pytest.mark.parametrize(("steps", "kept"), [(1, 1), (2, 2), (8, 8), (9, 4), (64, 4)])
def test_only_a_large_accumulation_is_shrunk(resolved, steps, kept):
    result = resolved({**PLAIN, "gradient_accumulation_steps": steps})
    assert result.plan.accumulation == kept
    assert bool(said(result, f"accumulation {kept} for {steps}")) is (steps != kept)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_batch_size_fits_the_ranks(resolved, ranks):
    config = resolved({**PLAIN, "train_batch_size": 768}, ranks=ranks).plan.config
    assert config["train_batch_size"] == ranks * 3 * config["train_micro_batch_size_per_gpu"]
    assert config["train_micro_batch_size_per_gpu"] <= 2


def test_accumulation_is_derived_from_the_batch_size(resolved):
    result = resolved({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "optimizer": ADAMW}, ranks=4)
    assert result.plan.accumulation == 2
    assert said(result, "train_batch_size 32 on 4 processes")


def test_sizes_are_scaled_and_keep_their_order(resolved):
    sizes = {"reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e7, "sub_group_size": 1e9}
    result = resolved({**PLAIN, "zero_optimization": {"stage": 3, **sizes}})
    block = zero(result)
    assert block["stage3_prefetch_bucket_size"] * 9 < block["reduce_bucket_size"] < 6_500
    assert block["sub_group_size"] == pytest.approx(2 * block["reduce_bucket_size"], rel=0.01)
    assert 16 < block["stage3_param_persistence_threshold"] < 256  # vectors persist, matrices do not
    assert said(result, "--model-args parameters")


def test_a_smaller_model_has_larger_buckets(resolved):
    config = {**PLAIN, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}
    small = resolved(config, arguments={"parameters": 5e8})
    assert zero(small)["reduce_bucket_size"] == 6_500  # one bucket holds the whole model, as in the job
    assert zero(resolved(config))["reduce_bucket_size"] < 1_000


@pytest.mark.parametrize("value", [0, 1, 100])
def test_small_sizes_are_kept(resolved, value):
    block = {"stage": 3, "max_live_parameters": value}
    assert zero(resolved({**PLAIN, "zero_optimization": block}))["stage3_max_live_parameters"] == min(value, 1)


def test_auto_sizes_are_computed_from_the_model(resolved):
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    result = resolved({**AUTO, "optimizer": ADAMW, "zero_optimization": {"stage": 3, **dict.fromkeys(names, "auto")}})
    assert [zero(result)[name] for name in names] == [256, 230, 160]


def test_auto_takes_the_values_of_transformers(resolved):
    optimizer = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
    config = {**AUTO, "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "optimizer": optimizer}
    given = {"learning_rate": 2e-4, "bf16": True, "gradient_accumulation_steps": 3}
    result = resolved({**config, "zero_optimization": {"stage": 2}}, arguments=given)
    parameters = result.plan.config["optimizer"]["params"]
    assert parameters == {"lr": 2e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    assert (result.plan.precision, result.plan.accumulation) == ("bf16", 3)
    (assumed,) = said(result, "TrainingArguments")
    assert "max_grad_norm=1.0" in assumed
    assert "weight_decay=0.0" in assumed
    assert "learning_rate" not in assumed


def test_the_schedule_fits_the_steps(resolved):
    parameters = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "total_num_steps"), "auto")
    scheduler = {"type": "WarmupDecayLR", "params": {**parameters, "warmup_num_steps": 500}}
    result = resolved({**PLAIN, "scheduler": scheduler}, steps=8)
    scheduled = result.plan.config["scheduler"]["params"]
    assert scheduled == {"warmup_min_lr": 0, "warmup_max_lr": 5e-5, "warmup_num_steps": 4, "total_num_steps": 10}


@pytest.mark.parametrize(("version", "clipping"), [("0.19.2", 0.0), ("0.19.3", 1.0)])
def test_missing_clipping_is_the_releases_default(release, resolved, version, clipping):
    release(version)
    result = resolved({**BATCH, "optimizer": ADAMW})
    assert result.plan.config["gradient_clipping"] == clipping
    assert said(result, f"gradient_clipping {clipping}")


def test_what_does_not_change_the_numbers_is_dropped_and_reported(resolved):
    offload = {"device": "nvme", "nvme_path": "/nvme", "pin_memory": False, "buffer_count": 4}
    block = {"stage": 3, "offload_param": offload, "offload_optimizer": {"device": "cpu"}}
    block = {**block, "zero_quantized_weights": True, "zero_hpz_partition_size": 2}
    monitors = {"wandb": {"enabled": True}, "tensorboard": {"enabled": False}, "wall_clock_breakdown": True}
    others = {"activation_checkpointing": {"partition_activations": True}, "aio": {"block_size": 1048576}}
    result = resolved({**PLAIN, **monitors, **others, "zero_optimization": block})
    assert not {"wandb", "wall_clock_breakdown", "activation_checkpointing", "aio"} & set(result.plan.config)
    assert zero(result)["offload_param"] == {"device": "cpu", "pin_memory": False}
    assert "zero_quantized_weights" not in zero(result)
    assert zero(result)["zero_hpz_partition_size"] == 2
    for told in ("wandb, wall_clock_breakdown", "activation_checkpointing", "offload_param to cpu"):
        assert said(result, told)
    assert said(result, "zero_optimization.zero_quantized_weights")
    assert not said(result, "tensorboard")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"tensor_parallel": {"autotp_size": 2}}, "tensor_parallel"),
        ({"sequence_parallel_size": 2}, "sequence_parallel_size"),
        ({"amp": {"enabled": True}}, "amp"),
        ({"progressive_layer_drop": {"enabled": True}}, "progressive_layer_drop"),
        ({"compression_training": {"row_pruning": {"shared_parameters": {"enabled": True}}}}, "compression_training"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 2}}, "zero_optimization.mics_shard_size"),
        ({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, "zero_optimization.zenflow"),
    ],
)
def test_unsupported_keys_are_refused(resolved, config, key):
    with pytest.raises(NotAudited, match=f"^{key} is not audited: "):
        resolved({**PLAIN, **config})


def test_a_config_with_errors_is_refused_and_the_errors_are_located(resolved):
    with pytest.raises(NotAudited, match=r"dsfix check(.|\n)*reduce_bucket_size: .*5e8"):
        resolved({**PLAIN, "zero_optimization": {"stage": 2, "reduce_bucket_size": "5e8"}})


def test_disabled_keys_are_not_refused(resolved):
    pruning = {"row_pruning": {"shared_parameters": {"enabled": False}}}
    off = {"sequence_parallel_size": 1, "amp": {"enabled": False}, "compression_training": pruning}
    assert resolved({**PLAIN, **off, "zero_optimization": {"stage": 3, "mics_shard_size": -1}}).plan.accumulation == 3


@pytest.mark.parametrize(
    ("name", "config", "why"),
    [
        ("Lamb", {"zero_optimization": {"stage": 0}}, "Lamb is not audited: DeepSpeed implements it"),
        ("Muon", {}, "Muon is not audited: rounding"),
    ],
)
def test_an_optimizer_without_a_reference_is_refused_with_the_reason(resolved, release, name, config, why):
    release("0.19.8")
    written = {"optimizer": {"type": name, "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 2}}
    with pytest.raises(NotAudited, match=why):
        resolved({**PLAIN, **written, **config})


def test_the_optimizer_is_the_scripts_the_configs_or_that_of_transformers(resolved):
    assert resolved(PLAIN, arguments={"optimizer": "SGD"}).plan.optimizer == "SGD"
    assert resolved({**PLAIN, "optimizer": {"type": "Adagrad", "params": {"lr": 1e-3}}}).plan.optimizer == ""
    transformers = resolved({**BATCH, "zero_optimization": {"stage": 2}}).plan
    assert (transformers.optimizer, transformers.config["zero_allow_untested_optimizer"]) == ("AdamW", True)
    result = resolved({**BATCH, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})
    assert (result.plan.optimizer, result.plan.config["optimizer"]["type"]) == ("", "AdamW")
    assert said(result, "DeepSpeedCPUAdam")


def test_model_arguments_set_the_plan(resolved):
    plan = resolved(PLAIN, arguments={"lora": "peft", "gradient_checkpointing": True}).plan
    assert (plan.lora, plan.freeze, plan.checkpointing) == (True, "base", "non-reentrant")
    plan = resolved(PLAIN, arguments={"gradient_checkpointing": True, "use_reentrant": True}).plan
    assert (plan.lora, plan.freeze, plan.checkpointing) == (False, "part", "reentrant")


@pytest.mark.parametrize(("stage", "auto", "init"), [(3, True, True), (3, False, False), (2, True, False)])
def test_transformers_builds_a_zero_3_model_under_zero_init(resolved, stage, auto, init):
    config = {**PLAIN, **(AUTO if auto else {}), "zero_optimization": {"stage": stage}}
    assert resolved(config).plan.zero_init is init
    assert resolved(config, zero_init=not init).plan.zero_init is not init


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {"initial_scale_power": 16}),
        ({"initial_scale_power": 32}, {"initial_scale_power": 16}),
        ({"initial_scale_power": 8}, {"initial_scale_power": 8}),
        ({"loss_scale": 128}, {"loss_scale": 128}),
    ],
)
def test_fp16_has_a_step_to_skip_and_a_loss_scale_that_a_short_job_reaches(resolved, given, kept):
    plan = resolved({**PLAIN, "fp16": {"enabled": True, **given}}).plan
    assert plan.config["fp16"] == {"enabled": True, **kept}
    assert plan.skip_step == 3
    assert resolved({**PLAIN, "bf16": {"enabled": True}}).plan.skip_step is None


def test_accelerates_own_file(resolved):
    pytest.importorskip("yaml")
    text = """\
        distributed_type: DEEPSPEED
        mixed_precision: bf16
        num_processes: 16
        deepspeed_config:
          zero_stage: 3
          zero3_init_flag: true
          gradient_accumulation_steps: 4
          gradient_clipping: 1.0
          offload_optimizer_device: cpu
        """
    result = resolved(textwrap.dedent(text), "accelerate.yaml")
    plan = result.plan
    assert (plan.stage, plan.precision, plan.accumulation, plan.ranks, plan.zero_init) == (3, "bf16", 4, 8, True)
    assert said(result, "8 of 16 ranks")


@pytest.mark.parametrize(
    ("auto", "backwards", "used"),
    [(True, None, "dict"), (True, "loss", "loss"), (False, None, "loss"), (False, "dict", "dict")],
)
def test_a_model_of_transformers_returns_a_dictionary(resolved, auto, backwards, used):
    result = resolved({**PLAIN, **(AUTO if auto else {})}, backwards=backwards)
    assert result.plan.backwards == used
    assert bool(said(result, "returns a dictionary")) is (auto and backwards is None)


# the search

WRONG = Difference("training", "gradients", 1, ("a.weight", "b.bias"), 0.36, 1.0, 0.64, 0.004)
LOST = Difference("resume", "parameters", 3, ("a.weight",), 0.5, 1.0, 0.5, 1e-6)


class Bench:
    """A stand-in for trials: `found(plan, patches)` returns the differences. plans: those trained by the search."""

    def __init__(self, plan, applied, found):
        self.applied, self.found, self.plans = tuple(applied), found, []
        self.plan = plan

    def trial(self, plan, *, skip=(), patched=True, timeout=120.0):
        patches = tuple(patch for patch in self.applied if patched and patch not in skip)
        self.plans.append(plan)
        found = self.found(plan, set(patches))
        errors = tuple(each.detail for each in found if each.what == "error")
        return AuditVerdict(tuple(found), 100, patches=patches, seconds=1.0, errors=errors)

    def search(self, suspects=(), seconds=1000.0):
        search = Search(self.trial, self.plan, self.trial(self.plan), time.monotonic() + seconds)
        without = self.trial(self.plan, patched=False)
        self.plans.clear()
        search.run(without, suspects)
        return search.found


def plan_of(**options):
    config = {
        **{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "train_batch_size": 16},
        **{"gradient_clipping": 1.0, "optimizer": ADAMW, "bf16": {"enabled": True}},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "round_robin_gradients": True},
    }
    return Plan(config, **options)


MANY = [f"p{number:02}" for number in range(20)]


def unless(*needed, wrong=WRONG):
    """What is found unless these patches are on."""
    return lambda plan, patches: [] if {*needed} <= patches else [wrong]


@pytest.mark.parametrize("needed", [{"p07"}, {"p00", "p19"}, {"p03", "p04", "p11"}])
@pytest.mark.parametrize("suspects", [(), ("p07", "p00"), ("p12",)])
def test_exactly_the_needed_patches_are_named(needed, suspects):
    found = Bench(plan_of(), MANY, unless(*needed)).search(suspects)
    assert {fix.patch for fix in found.fixes} == needed
    assert all(fix.seen.differences == (WRONG,) for fix in found.fixes)
    assert found.complete
    assert found.trials < 40


def test_a_suspect_is_found_first():
    assert Bench(plan_of(), MANY, unless("p07")).search(["p07", "elsewhere"]).trials <= 2


@pytest.mark.parametrize("wrong", [set(), {"p07"}, {"zero3_two_losses_one_forward", "p19"}])
def test_patches_for_the_import_and_for_the_training_are_both_found(wrong):
    imports = {"numpy_bufsize", "torch_elastic_log"}
    applied = [*MANY, *imports, "op_probe_breaks_import", "zero2_accumulation_drops_microbatches", *wrong - {*MANY}]

    def found(plan, patches):
        if not imports <= patches:
            return error("ImportError: x")
        return [WRONG] if not wrong <= patches else []

    result = Bench(plan_of(), applied, found).search()
    assert {fix.patch for fix in result.fixes} == imports | wrong
    assert {fix.seen.differences[0].what for fix in result.fixes if fix.patch in imports} == {"error"}


def test_when_time_runs_out_the_smallest_sufficient_set_is_reported(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    found = Bench(plan_of(), MANY, unless("p07")).search(seconds=4)
    assert not found.complete
    assert "p07" in found.candidates
    assert len(found.candidates) < len(MANY)


def test_a_patch_needed_only_in_a_later_phase_is_found_even_if_time_runs_out(monkeypatch):
    def found(plan, patches):
        lost = [LOST] if "resume" in plan.phases and "p02" not in patches else []
        return [WRONG] if "p01" not in patches else lost

    assert {fix.patch for fix in Bench(plan_of(), MANY, found).search().fixes} == {"p01", "p02"}
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    result = Bench(plan_of(), MANY, found).search(["p01"], seconds=2)
    assert not result.complete
    assert {"p01", "p02"} <= set(result.candidates)


def test_a_patch_named_after_the_phase_that_differs_is_tried_before_all_others():
    """LoRA, ZeRO-3 and checkpointing on 0.18.9: a crash in the training hides a wrong universal checkpoint."""
    first, second = "zero3_checkpoint_recompute", "universal_checkpoint_frozen_parameters"
    lost = Difference("universal", "parameters", 3, ("a.weight",), 0.5, 1.0, 0.5, 1e-6)

    def found(plan, patches):
        if first not in patches:
            return error(EMPTIED)
        return [lost] if "universal" in plan.phases and second not in patches else []

    plan = plan_of(phases=("resume", "universal"))
    bench = Bench(plan, [*MANY, "universal_checkpoint_weights_only", first, second], found)
    fixes = {fix.patch: fix.seen.differences for fix in bench.search(["p01", "p02"]).fixes}
    assert fixes == {first: tuple(error(EMPTIED)), second: (lost,)}
    assert [each.phases for each in bench.plans].count(plan.phases) == 2  # with the first alone, and with both
    assert len(bench.plans) <= 8


def test_phases_that_differ_only_together_also_end_the_search():
    def found(plan, patches):
        return [LOST] if {"resume", "universal"} <= {*plan.phases} and not {"p02", "p05"} <= patches else []

    bench = Bench(plan_of(phases=("resume", "universal")), MANY, found)
    assert {fix.patch for fix in bench.search(["p05"]).fixes} == {"p02", "p05"}


def test_remaining_differences_do_not_hide_the_fixed_ones():
    bench = Bench(plan_of(), MANY, lambda plan, patches: [LOST] * (plan.stage > 0) + [WRONG] * ("p05" not in patches))
    assert [fix.patch for fix in bench.search().fixes] == ["p05"]


EMPTIED = """\
Traceback (most recent call last):
  File "model.py", line 7, in forward
torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have \
different metadata than during the forward pass.
saved metadata: {'shape': torch.Size([16]), 'dtype': torch.bfloat16, 'device': device(type='cpu')}
recomputed metadata: {'shape': torch.Size([0]), 'dtype': torch.bfloat16, 'device': device(type='cpu')}
"""
NO_LOG = "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'"
NO_BUFSIZE = "ImportError: cannot import name 'BUFSIZE' from 'numpy'"


def error(text):
    return [Difference("training", "error", 0, (), 0, 0, 0, 0, text)]


@pytest.mark.parametrize("phases", [(), ("resume",)])
def test_one_training_confirms_the_patch_whose_symptom_the_error_shows(phases):
    """It has all phases of the audit, so that no further run is needed for them."""
    needed = "zero3_checkpoint_recompute"
    applied = ["torch_elastic_log", "zero3_left_out_gradients", needed, *MANY]
    bench = Bench(plan_of(phases=phases), applied, unless(needed, wrong=error(EMPTIED)[0]))
    found = bench.search(["zero3_left_out_gradients"])
    assert [fix.patch for fix in found.fixes] == [needed]
    assert [plan.phases for plan in bench.plans] == [phases]
    assert found.trials == 1


def test_an_error_hidden_by_another_also_names_its_patch():
    def found(plan, patches):
        if "torch_elastic_log" not in patches:
            return error(NO_LOG)
        return [] if "numpy_bufsize" in patches else error(NO_BUFSIZE)

    bench = Bench(plan_of(phases=()), [*MANY, "numpy_bufsize", "torch_elastic_log"], found)
    assert {fix.patch for fix in bench.search().fixes} == {"torch_elastic_log", "numpy_bufsize"}
    assert len(bench.plans) == 3  # the first, both, and the second alone: is the first needed?


def test_a_patch_whose_symptom_matches_but_does_not_help_is_not_a_fix():
    bench = Bench(plan_of(), ["zero3_checkpoint_recompute", *MANY], unless("p07", wrong=error(EMPTIED)[0]))
    assert [fix.patch for fix in bench.search().fixes] == ["p07"]


def test_the_time_limit_ends_the_search_and_is_reported():
    found = Bench(plan_of(), MANY, unless("p07")).search(seconds=-1.0)
    assert (found.complete, found.trials) == (False, 0)
    assert set(found.candidates) == set(MANY)


# the text


def audit_of(with_dsfix, without=None, found=None, notes=("micro-batches of 2",)):
    resolved = ResolvedConfig(plan_of(), notes)
    return report.Audit("ds.json", resolved, with_dsfix, without, found, seconds=12.3)


def text_of(*arguments, **options):
    return " ".join(" ".join(report.text(audit_of(*arguments, **options))).split())


AGREES = AuditVerdict(
    comparisons=412, patches=("zero2_accumulation_drops_microbatches",), versions={"deepspeed": "0.17.6"}, device="CPU"
)


def test_text_of_a_fix():
    wrong = AuditVerdict((WRONG,), 30)
    bench = Bench(plan_of(), AGREES.patches, lambda plan, patches: [] if patches else [WRONG])
    text = text_of(AGREES, wrong, bench.search())
    assert "from step 2 on, the gradients passed to the optimizer of a.weight, b.bias" in text
    assert "relative difference 0.64, rounding explains 0.004; norm 0.36, PyTorch: 1" in text
    assert "- zero2_accumulation_drops_microbatches: ZeRO-2" in text
    assert "`import dsfix` on the first line" in text


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Difference("training", "loss", 0, (), 2.5, 2.0, 0.25, 1e-6), "from step 1 on, the loss: 2.5, PyTorch: 2"),
        (Difference("training", "skipped", 2, (), 0.0, 1.0, 1.0, 0.0), "not skipped, but should be"),
        (Difference("training", "skipped", 2, (), 1.0, 0.0, 1.0, 0.0), "skipped, but should not be"),
        (Difference("training", "error", 0, (), 0, 0, 0, 0, "RuntimeError: x"), "step 1 fails with RuntimeError: x"),
        (Difference("resume", "state exp_avg", 3, ("w",), 1.0, 2.0, 0.5, 0.1), "the optimizer's exp_avg of w"),
        (Difference("zero_to_fp32", "parameters", 3, tuple("abcde"), 1, 2, 0.5, 0.1), "of a, b, c and 2 more"),
        (
            Difference("training", "parameters", 1, ("w",), math.nan, 2, math.nan, 0.1),
            "of w: nan or inf, but finite in",
        ),
        (Difference("training", "gradients", 1, ("w",), 0, 0, 1, 0, "the ranks differ"), "of w: the ranks differ"),
    ],
)
def test_differences_in_words(difference, words):
    assert words in report.sentence(difference)


def test_text_of_a_remaining_bug():
    found = Bench(plan_of(), MANY, lambda plan, patches: [WRONG]).search()
    assert (found.fixes, found.complete) == ([], True)
    text = text_of(AuditVerdict((WRONG,), 30, patches=tuple(MANY)), AuditVerdict((WRONG,), 30), found)
    assert "No dsfix patch fixes it." in text


def test_text_of_a_wrong_patch_and_of_no_comparison():
    assert "a patch is wrong" in text_of(AuditVerdict((WRONG,), 30, patches=("p",)), AuditVerdict((), 30))
    assert "nothing compared: timed out after 120 s" in text_of(AuditVerdict(failed="timed out after 120 s"))


def test_json_is_json():
    bench = Bench(plan_of(), MANY, lambda plan, patches: [LOST] + [WRONG] * ("p03" not in patches))
    nan = Difference("training", "loss", 0, (), math.nan, 1.0, math.inf, 0.0)
    audit = audit_of(AuditVerdict((WRONG, nan), 30), AuditVerdict((WRONG,), 30), bench.search())
    content = json.loads(json.dumps(report.as_json(audit), allow_nan=False))
    assert content["agrees"] is content["with_dsfix"]["agrees"] is False
    assert content["with_dsfix"]["differences"][1]["got"] == "nan"
    assert content["search"]["fixes"][0]["patch"] == "p03"
    assert content["plan"]["ranks"] == 2


# the command

STAND_IN = """\
import contextlib, json, signal, sys, types

def trial(plan, *, skip=(), patched=True, timeout=0.0, command=None):
    from dsfix.audit.agreement import Difference, AuditVerdict
    patches = tuple(patch for patch in ("one", "two") if patched and patch not in skip)
    wrong = (Difference("training", "loss", 0, (), 2.0, 1.0, 1.0, 0.0),)
    {body}

def ranks(device):
    from dsfix.lab.distributions import LabUnavailable
    {ranks}

module = types.ModuleType("dsfix.audit.trial")
module.trial = trial
module.ranks = ranks
module.compiled = lambda plan, command: 61.5
sys.modules["dsfix.audit.trial"] = module
from dsfix.cli.main import main
sys.exit(main({arguments!r}))
"""
FIXED = "return AuditVerdict(() if 'two' in patches else wrong, 10, patches=patches)"
REMAINS = "return AuditVerdict(wrong, 10, patches=patches)"
ANY = "return contextlib.nullcontext()"
# a signal that comes between the line and `signal.pause()` would be lost to that
SIGNALS = "{signal.SIGINT, signal.SIGTERM}"
WAITS = (
    f"signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNALS}); print('waiting', file=sys.stderr, flush=True); "
    f"came = signal.sigwait({SIGNALS}); signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNALS}); "
    "signal.raise_signal(came)"
)


@pytest.fixture
def audit(environment):
    environment.install("0.17.6")

    def start(*arguments, body=FIXED, ranks=ANY, config=None, **variables):
        path = environment.directory / "ds.json"
        path.write_text(json.dumps({**PLAIN, "zero_optimization": {"stage": 1}} if config is None else config))
        arguments = ("audit", "ds.json", "--device", "cpu", *arguments)
        return environment.start(code=STAND_IN.format(body=body, ranks=ranks, arguments=arguments), **variables)

    def run(*arguments, **options):
        process = start(*arguments, **options)
        out, errors = process.communicate()
        assert "Traceback" not in errors
        return process.returncode, out, errors

    run.start = start
    return run


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("return AuditVerdict((), 10, patches=patches)", 0, "agrees with PyTorch within rounding (10 comparisons)"),
        (FIXED, 0, "Fixed by dsfix"),
        (REMAINS, 1, "No dsfix patch fixes it."),
        ("return AuditVerdict(failed='timed out after 120 s')", 1, "nothing compared: timed out after 120 s"),
    ],
)
def test_exit_status(audit, body, status, words):
    returned, out, _ = audit(body=body)
    assert words in out
    assert returned == status


def test_progress_goes_to_standard_error_and_json_to_standard_output(audit):
    status, out, errors = audit("--json")
    content = json.loads(out)
    assert status == 0
    assert content["agrees"] is True
    assert [fix["patch"] for fix in content["search"]["fixes"]] == ["two"]
    lines = errors.splitlines()
    assert lines[0].startswith("[1/2] with dsfix: agrees")
    assert lines[1].startswith("[2/2] without dsfix: differs: the loss")
    assert lines[2].startswith("[1] with ")


def test_compiling_is_shown_separately_from_training(audit):
    zero = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    _, _, errors = audit("--no-search", config={**PLAIN, "optimizer": ADAMW, "zero_optimization": zero})
    lines = errors.splitlines()
    assert lines[0] == "[1/3] compiling DeepSpeed's cpu_adam, unless it is in the cache: 61.5 s"
    assert lines[1].startswith("[2/3] with dsfix: agrees, ")


def test_processes_that_cannot_be_started_are_reported(audit):
    status, out, errors = audit(ranks="raise LabUnavailable('torch cannot be preloaded')")
    assert (status, errors) == (1, "")
    assert "nothing compared: torch cannot be preloaded" in out


def test_one_run_if_no_patch_applies(audit):
    _, out, errors = audit("--json", "--phases=none", body="return AuditVerdict((), 10)")
    assert json.loads(out)["without_dsfix"] is None
    assert json.loads(out)["plan"]["phases"] == []
    assert "without dsfix" not in errors


def test_options_reach_the_plan(audit):
    options = ("--ranks=4", "--steps=8", "--freeze=none", "--phases=resume,16bit", "--backwards=two", "--no-search")
    status, out, _ = audit("--json", *options)
    found = json.loads(out)
    assert (status, found["search"]) == (0, None)
    expected = {"ranks": 4, "steps": 8, "freeze": "none", "phases": ["resume", "16bit"], "backwards": "two"}
    assert found["plan"].items() >= {**expected, "device": "cpu"}.items()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--ranks=0", "must be between 1 and 8, got '0'"),
        ("--ranks=9", "must be between 1 and 8, got '9'"),
        ("--steps=1", "must be between 2 and 50, got '1'"),
        ("--phases=load", "must be some of resume, universal, zero_to_fp32, 16bit, or none; got 'load'"),
        ("--model-args=learning_rat=1", "did you mean learning_rate"),
        ("--schedule=sooner", "expected early, late, ahead or random:SEED, got 'sooner'"),
        ("--schedule=late", "--schedule requires the emulated CUDA device"),
    ],
)
def test_bad_options(audit, option, words):
    status, out, errors = audit(option)
    assert status == 2
    assert words in out + errors


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("[1]", "holds no config"),
        ('{"zero_optimization": {"stage": 7}}', "zero_optimization.stage: "),
        ('{"train_batch_size": 8, "sequence_parallel_size": 2}', "sequence_parallel_size is not audited"),
    ],
)
def test_files_that_cannot_be_audited(environment, content, words):
    environment.install("0.17.6")
    path = environment.directory / "broken.json"
    if content is not None:
        path.write_text(content)
    done = environment.dsfix("audit", path, "--device=cpu")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("left", ["nothing", "metadata", "no torch"])
def test_without_deepspeed_or_torch(environment, left):
    if left == "metadata":
        environment.register("0.17.6")
    elif left == "no torch":
        if importlib.util.find_spec("torch"):
            pytest.skip("torch is installed here")
        environment.install("0.17.6")
        (environment.directory / "torch.py").unlink()
    path = environment.directory / "ds.json"
    path.write_text(json.dumps(PLAIN))
    done = environment.dsfix("audit", path, "--json")
    assert done.returncode == 3
    assert ("torch" if left == "no torch" else "eep") in json.loads(done.stdout)["error"]


def test_without_a_device_the_cpu_is_used_and_reported(environment):
    environment.install("0.17.6")
    (environment.directory / "ds.json").write_text(json.dumps(PLAIN))
    code = STAND_IN.format(body="return AuditVerdict((), 10)", ranks=ANY, arguments=["audit", "ds.json", "--json"])
    out, _ = environment.start(code=code).communicate()
    content = json.loads(out)
    assert content["plan"]["device"] == "cpu"
    assert "on DeepSpeed's CPU accelerator: torch" in content["assumed"][-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_when_interrupted_the_results_so_far_are_reported(audit, number):
    body = f"if not patched: {WAITS}\n    return AuditVerdict((), 10, patches=patches)"
    process = audit.start("--json", body=body)
    assert any("waiting" in line for line in process.stderr)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    content = json.loads(out)
    assert process.returncode == 130
    assert (content["interrupted"], content["without_dsfix"]) == (True, None)
    assert content["with_dsfix"]["comparisons"] == 10
    assert "Traceback" not in errors


def test_an_audit_that_is_interrupted_before_anything_was_compared_says_so(audit):
    process = audit.start(body=WAITS)
    assert any("waiting" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, "Interrupted before anything was compared." in out) == (130, True)
