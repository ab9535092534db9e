"""`check` predicts what the installed DeepSpeed does with a config."""

import json
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from dsfix.check import checking, extract, keys
from dsfix.check.arguments import checked
from dsfix.lab.ranks import free_port
from dsfix.rules import Level
from dsfix.versions import module_file
from tests.config_words import config_of
from tests.processes import ended

NEEDS_ONECCL = "CPU ranks of this release need oneCCL"
REMOVED = ["nebula", "compression_training", "amp", "sparse_gradients", "sparse_attention", "graph_harvesting"]
# configs that DeepSpeedConfig accepts or rejects: check finds an error if and only if it rejects
_READ = """
batch
batch zero.stage=3 zero.stage3_prefetch_bucket_size=5e7 zero.offload_param.device=cpu zero.sub_group_size=1e9
batch zero.stage=4
batch zero.stage="2"
batch zero_optimization=true
batch zero_optimization=2
batch fp16=true
batch zero.stage=3 zero.stage3_prefetch_bucket_size=15099494.4
batch zero.stage=2 zero.reduce_bucket_size="5e8"
batch zero.stage=2 zero.reduce_bucket_size="500"
batch zero.stage=2 zero.reduce_bucket_size=5e8
batch zero.stage=2 zero.overlap_comm=maybe
batch zero.stage=0 zero.reduce_bucket_size=0
batch zero.stage=3 zero.offload_param.device=cuda
batch zero.stage=3 zero.offload_param=true
batch fp16.enabled=true bf16.enabled=true
batch fp16.enabled=true bf16.enabled=false
batch fp16.enabled=auto bf16.enabled=auto torch_autocast.enabled=true
batch bf16.enabled=true bf16.loss_scale=0
batch zero.stage=2 zero.reduce_bucketsize=5e8
batch bf16.enabled=true bf16.speed=1
batch gradient_cliping=1.0
batch activation_checkpointing.cpu_checkpoint=true
nothing
gradient_accumulation_steps=2
train_micro_batch_size_per_gpu="8"
train_micro_batch_size_per_gpu=0
train_batch_size=auto train_micro_batch_size_per_gpu=auto
train_batch_size=10 train_micro_batch_size_per_gpu=4
batch zero.stage=3 zero.mics_shard_size=-1
train_batch_size=${BATCH}
batch zero.stage=ZERO_STAGE
batch zero.stage=3 zero.sub_group_size=<size>
batch zero.stage=3 zero.stage3_max_live_parameters=auto zero.offload_param={"device":"cpu","buffer_size":"auto"}
batch pipeline.stages=4 pipeline.not_a_key=1
"""
READ = [*_READ.strip().split("\n"), *(f"batch {key}.enabled=false" for key in REMOVED)]
PRODUCTS = [(16, 2, 2, 4), (16, 2, 2, 8), (15, 2, 2, 4)]
PRODUCTS += [(10, None, None, 4), (12, None, None, 4), (12, 3, None, 4), (12, 3, None, 2)]
# configs that deepspeed.init_inference accepts or rejects: check finds an error if and only if it rejects
_INFERENCE = """
kernels tensor_parallel.tp_size=2
kernel_inject=true tp.tp_size=2 max_tokens=512 injection_dict={}
kernels quant.enabled=true quant.weight.enabled=true quant.weight.num_bits=8
kernels replace_method=auto
kernels max_out_token=512
kernels tensor_parallel.size=2
kernels tensor_parallel.tp_grain_size=64
kernels keep_module_on_host=true
kernels max_out_tokens=many
replace_with_kernel_inject=perhaps enable_cuda_graph=false
"""
INFERENCE = _INFERENCE.strip().split("\n")
# one step on a CPU rank: config, the rule that predicts the failure (None if the step succeeds), text of the error
TRAINED = [
    ("batch sgd", None, ""),
    ("batch sgd zero.stage=2", "untested_optimizer", "untested ZeRO Optimizer"),
    ("batch zero.stage=2 optimizer.type=AdamW optimizer.params.torch_adam=true", None, ""),
    ("batch sgd untested zero.stage=2", None, ""),
    ("batch sgd optimizer.params.max_grad_norm=1.0", "max_grad_norm_in_optimizer", "max_grad_norm"),
    ("batch optimizer.type=AdamW8bit optimizer.params={}", "unknown_optimizer", "not a supported"),
    ("batch sgd scheduler.type=WarmupDecay scheduler.params={}", "unknown_scheduler", "does not recognize"),
    ("batch sgd scheduler.type=WarmupDecayLR scheduler.params={}", "incomplete_scheduler", "total_num_steps"),
    ("batch sgd scheduler.type=WarmupLR", "incomplete_scheduler", "TypeError"),
    ("batch sgd scheduler.type=WarmupDecayLR scheduler.params.total_num_steps=9", None, ""),
    ("batch sgd one_cycle scheduler.params.cycle_first_step_size=0", "scheduler_step_size_zero", "Error"),
    ("batch optimizer.type=SGD optimizer.params.lr=auto", "auto_number", "TypeError"),
    ('batch optimizer.type=SGD optimizer.params.lr="0.1"', "quoted_value", "TypeError"),
    ("batch sgd untested zero.stage=1 gradient_clipping=auto", "auto_number", "TypeError"),
    ("batch sgd untested zero.stage=2 zero.reduce_bucket_size=0", "empty_bucket", "Error"),
    ("batch sgd untested zero.stage=3 zero.offload_param.device=nvme", "no_nvme_path", "nvme_path"),
]


@pytest.fixture(scope="module")
def outcomes(run_program, import_patches, release, tmp_path_factory):
    """Returns what the installed DeepSpeed did, by group and name."""
    trains = release > Version("0.14.0")
    plan = [("read", words, {"config": config_of(words)}) for words in READ]
    for product in PRODUCTS:
        plan.append(("product", product, {"config": batch(product), "world_size": product[3]}))
    plan += [("infer", words, {"config": config_of(words), "infer": True}) for words in INFERENCE]
    plan += [("effect", rule, {"config": config_of(EFFECTS[rule][0])}) for rule in EFFECTS]
    for words in [*(words for words, _, _ in TRAINED), BF16, BOTH] if trains else ():
        plan.append(("train", words, {"config": config_of(words), "train": True}))
    for words in (CLIENT, CLIENT_ALLOWED) if trains else ():
        plan.append(("train", words, {"config": config_of(words), "train": True, "client": "AdamW"}))
    cases = tmp_path_factory.mktemp("cases") / "cases.json"
    cases.write_text(json.dumps([case for _, _, case in plan]))
    found, stderr = run_program("configs", str(cases), DSFIX_ONLY=import_patches, **rank())
    results = {"trains": trains, "stderr": stderr}
    for (group, name, _), outcome in zip(plan, found):
        results.setdefault(group, {})[name] = outcome
    return results


def rank():
    """Returns the environment of a job's only rank."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def batch(product):
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return {name: value for name, value in zip(names, product) if value is not None}


def errors(config, **around):
    """Returns the rules that find an error in a config passed to deepspeed.initialize unchanged."""
    results = checking.check(config, plain=True, in_job=True, **around).findings
    return [each.rule for each in results if each.level is Level.ERROR]


@pytest.mark.parametrize("words", READ)
def test_an_error_is_found_if_and_only_if_deepspeed_rejects(outcomes, words):
    rejected = outcomes["read"][words].get("error")
    assert bool(errors(config_of(words))) is (rejected is not None), rejected


@pytest.mark.parametrize("words", INFERENCE)
def test_an_error_is_found_if_and_only_if_init_inference_rejects(outcomes, words):
    rejected = outcomes["infer"][words].get("error")
    seen = checking.check(config_of(words))
    assert seen.facts.inference
    assert any(finding.level is Level.ERROR for finding in seen.findings) is (rejected is not None), rejected


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_the_product_of_the_batch_sizes(outcomes, product):
    rejected = outcomes["product"][product].get("error")
    assert ("batch_product" in errors(batch(product), world_size=product[3])) is (rejected is not None), rejected


EFFECTS = {  # rule -> config, attribute, value if the rule finds something
    "auto_stage": ("batch zero.stage=auto", "stage", 0),
    "auto_bucket": ("batch zero.stage=2 zero.reduce_bucket_size=auto", "reduce_bucket_size", 500000000),
    "auto_precision": ("batch bf16.enabled=auto", "bf16", False),
    "auto_precision_taken_for_true": ("batch bf16.enabled=auto", "bf16", "auto"),
    "quoted_precision": ('batch fp16.enabled="false"', "fp16", "false"),
    "quoted_value": ('batch zero_allow_untested_optimizer="false"', "zero_allow_untested_optimizer", "false"),
    "misspelled_key": ("batch gradient_cliping=5.0", "gradient_clipping", None),
    "misplaced_key": ("batch reduce_bucket_size=7", "reduce_bucket_size", 500000000),
}


@pytest.mark.parametrize("rule", EFFECTS)
def test_silent_effects(outcomes, release, rule):
    words, attribute, value = EFFECTS[rule]
    results = {finding.rule: finding for finding in checking.check(config_of(words), plain=True).findings}
    seen = outcomes["effect"][rule]
    assert "error" not in seen
    if rule == "misspelled_key":
        note = results["gradient_clipping_default"].what
        value = seen["gradient_clipping"]
        assert f"the default is {float(value)} here" in note
        assert value == (1.0 if release >= Version("0.19.3") else 0.0)
    assert (rule in results) is (seen[attribute] == value)


CLIENT = "batch zero.stage=2 offload"
CLIENT_ALLOWED = f"{CLIENT} zero_force_ds_cpu_optimizer=false"
BF16 = "batch sgd bf16.enabled=true"
BOTH = f"{BF16} torch_autocast.enabled=true torch_autocast.dtype=bfloat16"


@pytest.fixture
def trained(outcomes):
    if not outcomes["trains"]:
        pytest.skip(NEEDS_ONECCL)
    return outcomes["train"]


@pytest.mark.parametrize(("words", "rule", "message"), TRAINED)
def test_the_first_step(trained, words, rule, message):
    stopped = trained[words].get("error", "")
    assert bool(stopped) is (rule is not None)
    assert message in stopped
    assert rule in errors(config_of(words)) if rule else errors(config_of(words)) == []


def test_offloading_with_the_scripts_optimizer(trained):
    given = checked({"optimizer": "AdamW"})
    assert "ZeRORuntimeException" in trained[CLIENT]["error"]
    assert errors(config_of(CLIENT), given=given) == ["offload_client_optimizer"]
    assert "error" not in trained[CLIENT_ALLOWED]
    assert errors(config_of(CLIENT_ALLOWED), given=given) == []


def test_bf16_with_torch_autocast(trained):
    assert trained[BF16]["dtype"] == "bfloat16"
    results = [finding.rule for finding in checking.check(config_of(BOTH), plain=True).findings]
    assert ("precision_and_torch_autocast" in results) is ("error" in trained[BOTH])
    if "precision_beside_torch_autocast" in results:
        assert trained[BOTH]["dtype"] == "bfloat16"


def test_the_table_agrees_with_the_source(release):
    package = Path(module_file("deepspeed") or "").parent
    assert keys.flatten(keys.of_release(release)) == keys.flatten(extract.extract_keys(package))


GUARDED = """
import sys, dsfix, deepspeed, torch
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
for more in ({"gradient_cliping": 1.0}, {"zero_optimization": {"stage": "auto"}}):
    model = torch.nn.Linear(4, 4)
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, **more}
    try:
        deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        print("initialised with", *more)
    except RuntimeError as error:
        print(type(error).__name__, error)
from dsfix.guards import config_check, initialize
from dsfix.settings import Settings
import deepspeed.runtime.zero.stage3
model.peft_config, model.is_gradient_checkpointing = {}, True
given = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
config_check.before(initialize.Call({"model": model, "config": given}, Settings.read()))
"""
RECOMPUTE = "zero3_checkpoint_recompute"


@pytest.mark.parametrize("choice", ["warn", "error"])
def test_at_initialize(environment, release, tmp_path, choice):
    if release <= Version("0.14.0"):
        pytest.skip(NEEDS_ONECCL)
    variables = {"DSFIX_CHECK": choice, "DSFIX_SKIP": RECOMPUTE if choice == "warn" else ""}
    done = ended([sys.executable, "-c", GUARDED], tmp_path, {**environment, **rank(), **variables})
    assert "initialised with gradient_cliping" in done.stdout, done.stderr
    assert "did you mean gradient_clipping?" in done.stderr
    assert ("initialised with zero_optimization" in done.stdout) is (choice == "warn")
    assert "[auto_stage]" in (done.stderr if choice == "warn" else done.stdout.partition("ConfigError")[2])
    needed = release < Version("0.19.3")  # bugs fixed by a patch in this process are not reported
    assert ("[zero3_checkpointing_recompute]" in done.stderr) is (needed and choice == "warn"), done.stderr


def test_at_initialize_silent_by_default(outcomes):
    assert "[auto_number]" not in outcomes["stderr"]


LINEAR = """
import sys, dsfix, deepspeed, torch
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
own = torch.nn.functional.linear
model = torch.nn.Linear(4, 4)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "memory_efficient_linear": True},
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_allow_untested_optimizer": True,
}
deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
print("replaced" if torch.nn.functional.linear is not own else "torch's own")
"""


def test_memory_efficient_linear_of_a_model_created_outside_zero_init(environment, release, tmp_path):
    if release <= Version("0.14.0"):
        pytest.skip(NEEDS_ONECCL)
    done = ended([sys.executable, "-c", LINEAR], tmp_path, {**environment, **rank()})
    findings = checking.check(config_of("batch zero.stage=3 zero.memory_efficient_linear=true")).findings
    ignored = "memory_efficient_linear_ignored" in [finding.rule for finding in findings]
    assert ("torch's own" if ignored else "replaced") in done.stdout, done.stderr
