"""`check` predicts what the installed DeepSpeed does with a config."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from dsfix.check import checking, extract, keys
from dsfix.check.arguments import checked
from dsfix.module_files import module_file
from dsfix.rules import Level

NEEDS_ONECCL = "CPU ranks of this release need oneCCL"
BATCH = {"train_micro_batch_size_per_gpu": 2}
SGD = {**BATCH, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
UNTESTED = {**SGD, "zero_allow_untested_optimizer": True}
OFFLOAD = {"device": "cpu"}
AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
REMOVED = ["nebula", "compression_training", "amp", "sparse_gradients", "sparse_attention", "graph_harvesting"]


def zero(**options: Any) -> dict[str, Any]:
    return {**BATCH, "zero_optimization": options}


# configs that DeepSpeedConfig accepts or rejects: check finds an error if and only if it rejects
READ: dict[str, dict[str, Any]] = {
    "minimal": BATCH,
    "stage 3": zero(stage=3, stage3_prefetch_bucket_size=5e7, offload_param=OFFLOAD, sub_group_size=1e9),
    "stage 4": zero(stage=4),
    "stage in quotes": zero(stage="2"),
    "deprecated form": {**BATCH, "zero_optimization": True},
    "not an object": {**BATCH, "zero_optimization": 2},
    "fp16 true": {**BATCH, "fp16": True},
    "fraction": zero(stage=3, stage3_prefetch_bucket_size=15099494.4),
    "5e8 in quotes": zero(stage=2, reduce_bucket_size="5e8"),
    "500 in quotes": zero(stage=2, reduce_bucket_size="500"),
    "5e8": zero(stage=2, reduce_bucket_size=5e8),
    "overlap maybe": zero(stage=2, overlap_comm="maybe"),
    "empty bucket": zero(stage=0, reduce_bucket_size=0),
    "unknown device": zero(stage=3, offload_param={"device": "cuda"}),
    "offload true": zero(stage=3, offload_param=True),
    "fp16 and bf16": {**BATCH, "fp16": {"enabled": True}, "bf16": {"enabled": True}},
    "fp16 and bf16 off": {**BATCH, "fp16": {"enabled": True}, "bf16": {"enabled": False}},
    "both auto": {
        **BATCH,
        "fp16": {"enabled": "auto"},
        "bf16": {"enabled": "auto"},
        "torch_autocast": {"enabled": True},
    },
    "loss scale under bf16": {**BATCH, "bf16": {"enabled": True, "loss_scale": 0}},
    "unknown key in zero": zero(stage=2, reduce_bucketsize=5e8),
    "unknown key in bf16": {**BATCH, "bf16": {"enabled": True, "speed": 1}},
    "unknown key at the top level": {**BATCH, "gradient_cliping": 1.0},
    "unknown key elsewhere": {**BATCH, "activation_checkpointing": {"cpu_checkpoint": True}},
    "no batch size": {},
    "only accumulation steps": {"gradient_accumulation_steps": 2},
    "batch in quotes": {"train_micro_batch_size_per_gpu": "8"},
    "batch of 0": {"train_micro_batch_size_per_gpu": 0},
    "batch auto": {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"},
    "total too small": {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4},
    **{f"removed {key}": {**BATCH, key: {"enabled": False}} for key in REMOVED},
    "removed in zero": zero(stage=3, mics_shard_size=-1),
    "placeholder for a size": {"train_batch_size": "${BATCH}"},
    "placeholder for a stage": zero(stage="ZERO_STAGE"),
    "placeholder for a number": zero(stage=3, sub_group_size="<size>"),
    "auto that DeepSpeed drops": zero(
        stage=3, stage3_max_live_parameters="auto", offload_param={**OFFLOAD, "buffer_size": "auto"}
    ),
    "unused key": {**BATCH, "pipeline": {"stages": 4, "not_a_key": 1}},
}
PRODUCTS = [
    (16, 2, 2, 4),
    (16, 2, 2, 8),
    (15, 2, 2, 4),
    (10, None, None, 4),
    (12, None, None, 4),
    (12, 3, None, 4),
    (12, 3, None, 2),
]

KERNELS = {"replace_with_kernel_inject": True}
# configs that deepspeed.init_inference accepts or rejects: check finds an error if and only if it rejects
INFERENCE: dict[str, dict[str, Any]] = {
    "minimal": {**KERNELS, "tensor_parallel": {"tp_size": 2}},
    "by aliases": {"kernel_inject": True, "tp": {"tp_size": 2}, "max_tokens": 512, "injection_dict": {}},
    "quantized": {**KERNELS, "quant": {"enabled": True, "weight": {"enabled": True, "num_bits": 8}}},
    "auto": {**KERNELS, "replace_method": "auto"},
    "unknown key": {**KERNELS, "max_out_token": 512},
    "unknown key below": {**KERNELS, "tensor_parallel": {"size": 2}},
    "grain size": {**KERNELS, "tensor_parallel": {"tp_grain_size": 64}},
    "on the host": {**KERNELS, "keep_module_on_host": True},
    "text for a number": {**KERNELS, "max_out_tokens": "many"},
    "text for a boolean": {"replace_with_kernel_inject": "perhaps", "enable_cuda_graph": False},
}

# one step on a CPU rank: config, the rule that predicts the failure (None if the step succeeds), text of the error
TRAINED: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "minimal": (SGD, None, ""),
    "untested optimizer": ({**SGD, "zero_optimization": {"stage": 2}}, "untested_optimizer", "untested ZeRO Optimizer"),
    "tested optimizer": (
        {**BATCH, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}},
        None,
        "",
    ),
    "untested but allowed": ({**UNTESTED, "zero_optimization": {"stage": 2}}, None, ""),
    "max_grad_norm": (
        {**BATCH, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "max_grad_norm": 1.0}}},
        "max_grad_norm_in_optimizer",
        "max_grad_norm",
    ),
    "unknown optimizer": (
        {**BATCH, "optimizer": {"type": "AdamW8bit", "params": {}}},
        "unknown_optimizer",
        "not a supported",
    ),
    "unknown scheduler": (
        {**SGD, "scheduler": {"type": "WarmupDecay", "params": {}}},
        "unknown_scheduler",
        "does not recognize",
    ),
    "no total_num_steps": (
        {**SGD, "scheduler": {"type": "WarmupDecayLR", "params": {}}},
        "incomplete_scheduler",
        "total_num_steps",
    ),
    "scheduler without params": ({**SGD, "scheduler": {"type": "WarmupLR"}}, "incomplete_scheduler", "TypeError"),
    "complete scheduler": ({**SGD, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}}, None, ""),
    "cycle of no steps": (
        {
            **SGD,
            "scheduler": {
                "type": "OneCycle",
                "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 0},
            },
        },
        "scheduler_step_size_zero",
        "Error",
    ),
    "lr auto": ({**BATCH, "optimizer": {"type": "SGD", "params": {"lr": "auto"}}}, "auto_number", "TypeError"),
    "lr in quotes": ({**BATCH, "optimizer": {"type": "SGD", "params": {"lr": "0.1"}}}, "quoted_value", "TypeError"),
    "clipping auto": (
        {**UNTESTED, "zero_optimization": {"stage": 1}, "gradient_clipping": "auto"},
        "auto_number",
        "TypeError",
    ),
    "empty bucket": ({**UNTESTED, "zero_optimization": {"stage": 2, "reduce_bucket_size": 0}}, "empty_bucket", "Error"),
    "nvme without a path": (
        {**UNTESTED, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
        "no_nvme_path",
        "nvme_path",
    ),
}


@pytest.fixture(scope="module")
def outcomes(
    run_program: Any, import_patches: str, release: Version, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Returns what the installed DeepSpeed did, by group and name."""
    trains = release > Version("0.14.0")
    plan: list[tuple[str, Any, dict[str, Any]]] = [("read", name, {"config": READ[name]}) for name in READ]
    for product in PRODUCTS:
        plan.append(("product", product, {"config": batch(product), "world_size": product[3]}))
    plan += [("infer", name, {"config": INFERENCE[name], "infer": True}) for name in INFERENCE]
    plan += [("effect", name, {"config": EFFECTS[name][0]}) for name in EFFECTS]
    for name, (config, _, _) in TRAINED.items() if trains else ():
        plan.append(("train", name, {"config": config, "train": True}))
    for name, config in (("client", CLIENT), ("client allowed", CLIENT_ALLOWED)) if trains else ():
        plan.append(("train", name, {"config": config, "train": True, "client": "AdamW"}))
    if trains:
        for name, config in BF16.items():
            plan.append(("train", name, {"config": config, "train": True}))
    cases = tmp_path_factory.mktemp("cases") / "cases.json"
    cases.write_text(json.dumps([case for _, _, case in plan]))
    found, stderr = run_program("configs", str(cases), DSFIX_ONLY=import_patches, **rank())
    results: dict[str, Any] = {"trains": trains, "stderr": stderr}
    for (group, name, _), outcome in zip(plan, found):
        results.setdefault(group, {})[name] = outcome
    return results


def rank() -> dict[str, str]:
    """Returns the environment of a job's only rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def batch(product: tuple[int, int | None, int | None, int]) -> dict[str, Any]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return {name: value for name, value in zip(names, product) if value is not None}


def errors(config: dict[str, Any], **around: Any) -> list[str]:
    """Returns the rules that find an error in a config passed to deepspeed.initialize unchanged."""
    found = checking.check(config, plain=True, in_job=True, **around).findings
    return [each.rule for each in found if each.level is Level.ERROR]


@pytest.mark.parametrize("name", READ)
def test_an_error_is_found_if_and_only_if_deepspeed_rejects(outcomes: dict[str, Any], name: str) -> None:
    rejected = outcomes["read"][name].get("error")
    assert bool(errors(READ[name])) is (rejected is not None), rejected


@pytest.mark.parametrize("name", INFERENCE)
def test_an_error_is_found_if_and_only_if_init_inference_rejects(outcomes: dict[str, Any], name: str) -> None:
    rejected = outcomes["infer"][name].get("error")
    findings = checking.check(INFERENCE[name]).findings
    assert "inference_config" in [each.rule for each in findings]
    assert any(each.level is Level.ERROR for each in findings) is (rejected is not None), rejected


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_the_product_of_the_batch_sizes(outcomes: dict[str, Any], product: Any) -> None:
    rejected = outcomes["product"][product].get("error")
    assert ("batch_product" in errors(batch(product), world_size=product[3])) is (rejected is not None), rejected


EFFECTS: dict[str, tuple[dict[str, Any], str, Any]] = {  # config, attribute, value if the rule finds something
    "auto_stage": (zero(stage="auto"), "stage", 0),
    "auto_bucket": (zero(stage=2, reduce_bucket_size="auto"), "reduce_bucket_size", 500_000_000),
    "auto_precision": ({**BATCH, "bf16": {"enabled": "auto"}}, "bf16", False),
    "auto_precision_taken_for_true": ({**BATCH, "bf16": {"enabled": "auto"}}, "bf16", "auto"),
    "quoted_precision": ({**BATCH, "fp16": {"enabled": "false"}}, "fp16", "false"),
    "quoted_value": ({**BATCH, "zero_allow_untested_optimizer": "false"}, "zero_allow_untested_optimizer", "false"),
    "misspelled_key": ({**BATCH, "gradient_cliping": 5.0}, "gradient_clipping", None),
    "misplaced_key": ({**BATCH, "reduce_bucket_size": 7}, "reduce_bucket_size", 500_000_000),
}


@pytest.mark.parametrize("rule", EFFECTS)
def test_silent_effects(outcomes: dict[str, Any], release: Version, rule: str) -> None:
    config, attribute, value = EFFECTS[rule]
    found = {each.rule: each for each in checking.check(config, plain=True).findings}
    seen = outcomes["effect"][rule]
    assert "error" not in seen
    if rule == "misspelled_key":
        note = found["gradient_clipping_default"].what
        value = seen["gradient_clipping"]
        assert f"the default is {float(value)} here" in note
        assert value == (1.0 if release >= Version("0.19.3") else 0.0)
    assert (rule in found) is (seen[attribute] == value)


CLIENT = zero(stage=2, offload_optimizer=OFFLOAD)
CLIENT_ALLOWED = {**CLIENT, "zero_force_ds_cpu_optimizer": False}
BF16 = {
    "bf16": {**SGD, "bf16": {"enabled": True}},
    "bf16 with autocast": {**SGD, "bf16": {"enabled": True}, **AUTOCAST},
}


@pytest.fixture
def trained(outcomes: dict[str, Any]) -> dict[str, Any]:
    if not outcomes["trains"]:
        pytest.skip(NEEDS_ONECCL)
    found: dict[str, Any] = outcomes["train"]
    return found


@pytest.mark.parametrize("name", TRAINED)
def test_the_first_step(trained: dict[str, Any], name: str) -> None:
    config, rule, message = TRAINED[name]
    stopped = trained[name].get("error", "")
    if rule is None:
        assert stopped == ""
        assert errors(config) == []
    else:
        assert message in stopped
        assert stopped
        assert rule in errors(config)


def test_offloading_with_the_scripts_optimizer(trained: dict[str, Any]) -> None:
    given = checked({"optimizer": "AdamW"})
    assert "ZeRORuntimeException" in trained["client"]["error"]
    assert errors(CLIENT, given=given) == ["offload_client_optimizer"]
    assert "error" not in trained["client allowed"]
    assert errors(CLIENT_ALLOWED, given=given) == []


def test_bf16_with_torch_autocast(trained: dict[str, Any]) -> None:
    assert trained["bf16"]["dtype"] == "bfloat16"
    both = trained["bf16 with autocast"]
    found = [each.rule for each in checking.check(BF16["bf16 with autocast"], plain=True).findings]
    assert ("precision_and_torch_autocast" in found) is ("error" in both)
    if "precision_beside_torch_autocast" in found:
        assert both["dtype"] == "bfloat16"


def test_the_table_agrees_with_the_source(release: Version) -> None:
    package = Path(module_file("deepspeed") or "").parent
    assert keys.flatten(keys.of_release(release)) == keys.flatten(extract.known(package))


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
def test_at_initialize(environment: dict[str, str], release: Version, tmp_path: Path, choice: str) -> None:
    if release <= Version("0.14.0"):
        pytest.skip(NEEDS_ONECCL)
    done = subprocess.run(
        [sys.executable, "-c", GUARDED],
        env={**environment, **rank(), "DSFIX_CHECK": choice, "DSFIX_SKIP": RECOMPUTE if choice == "warn" else ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "initialised with gradient_cliping" in done.stdout, done.stderr
    assert "did you mean gradient_clipping?" in done.stderr
    assert ("initialised with zero_optimization" in done.stdout) is (choice == "warn")
    assert "[auto_stage]" in (done.stderr if choice == "warn" else done.stdout.partition("ConfigError")[2])
    needed = release < Version("0.19.3")  # bugs fixed by a patch in this process are not reported
    assert ("[zero3_checkpointing_recompute]" in done.stderr) is (needed and choice == "warn"), done.stderr


def test_at_initialize_silent_by_default(outcomes: dict[str, Any]) -> None:
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


def test_memory_efficient_linear_of_a_model_made_outside_zero_init(
    environment: dict[str, str], release: Version, tmp_path: Path
) -> None:
    if release <= Version("0.14.0"):
        pytest.skip(NEEDS_ONECCL)
    command = [sys.executable, "-c", LINEAR]
    options = {"env": {**environment, **rank()}, "cwd": tmp_path, "timeout": 300}
    done = subprocess.run(command, **options, capture_output=True, text=True, check=False)
    findings = checking.check(zero(stage=3, memory_efficient_linear=True)).findings
    ignored = "memory_efficient_linear_ignored" in [each.rule for each in findings]
    assert ("torch's own" if ignored else "replaced") in done.stdout, done.stderr
