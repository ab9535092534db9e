"""The keys that a release reads, from its source and from the table.

`python -m matrix keys --check` compares the two for every release.
"""

import json

import pytest
from packaging.version import Version

from dsfix.check import extract, keys

FILES = {
    "__init__.py": "",
    "monitor.py": "def get_monitor(config):\n    return config.get('wandb', {})\n",
    "runtime/__init__.py": "",
    "runtime/config.py": """\
from pydantic import BaseModel
from ..monitor import get_monitor

_REMOVED_TOP_LEVEL_CONFIG_KEYS = {"amp": "gone"}

class DeepSpeedConfig:
    def __init__(self, config):
        self.size = config.get("train_batch_size")
        self.clipping = config.get("gradient_clipping")
        self.zero = Zero(**config.get("zero_optimization", {}))
        get_monitor(config)

class Zero(BaseModel):
    stage: int = 0
""",
    "runtime/lr_schedules.py": "VALID_LR_SCHEDULES = []\n",
}


@pytest.fixture
def package(tmp_path):
    """A package that reads its config as DeepSpeed does; it cannot be imported."""
    root = tmp_path / "deepspeed"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("damage", ["", "class DeepSpeedConfig:\n", "def broken(:\n"])
def test_source_without_a_config_class(package, damage):
    (package / "runtime" / "config.py").write_text(damage)
    with pytest.raises(extract.UnreadableSource):
        extract.extract_keys(package)


@pytest.mark.parametrize("damage", [None, "", "def get_monitor(:\n"])
def test_for_a_half_installed_release_the_tables_keys_are_used(environment, package, damage):
    file = package / "monitor.py"
    file.unlink() if damage is None else file.write_text(damage)
    with pytest.raises(extract.UnreadableSource, match=r"lacks monitor\.py"):
        extract.extract_keys(package)
    environment.register("0.14.2")
    config = environment.directory / "ds.json"
    config.write_text(json.dumps({"train_batch_size": 8, "gradient_clipping": 1.0, "wandb": {"enabled": False}}))
    shown = environment.dsfix("check", config).stdout
    assert "no problems found" in shown
    assert "the keys of deepspeed 0.14.2 from dsfix's table" in shown


@pytest.mark.parametrize(("key", "told"), [("aio", True), ("brand_new", False)])
def test_a_misplaced_section_is_reported_with_its_place(environment, key, told):
    environment.register("0.14.2")
    config = environment.directory / "ds.json"
    config.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 2, key: {"block_size": 1}}}))
    shown = " ".join(environment.dsfix("check", config).stdout.split())
    assert "rejected_key" in shown
    assert (f"{key} belongs at the config's top level" in shown) == told


def test_the_installed_source_decides_on_its_keys(environment, package):
    environment.register("0.14.2")
    config = environment.directory / "ds.json"
    config.write_text(
        json.dumps({"train_batch_size": 8, "zero_optimization": {"brand_new": 1}, "gradient_clipping": 1})
    )
    assert "rejected_key" in environment.dsfix("check", config).stdout
    file = package / "runtime" / "config.py"
    file.write_text(file.read_text() + "    brand_new: bool = False\n")
    assert "rejected_key" not in environment.dsfix("check", config).stdout


def test_a_fork_without_a_valid_version(environment, package):
    environment.register("unknown.fork")
    config = environment.directory / "ds.json"
    config.write_text(json.dumps({"train_batch_size": 8, "amp": {}}))
    done = environment.dsfix("check", config)
    assert done.returncode == 1
    assert "removed_key" in done.stdout
    assert "has no valid version" in done.stdout


@pytest.mark.parametrize(
    ("release", "path", "read"),
    [
        ("0.17.0", ("bf16", "check_grad_overflow"), False),
        ("0.17.1", ("bf16", "check_grad_overflow"), True),
        ("0.15.0", ("compile",), False),
        ("0.16.6", ("compile",), True),
    ],
)
def test_the_table(release, path, read):
    assert (keys.of_release(Version(release)).keys.find(*path) is not None) is read


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gradient_cliping", "gradient_clipping"),
        ("Gradient-Clipping", "gradient_clipping"),
        ("train_micro_batch_size", "train_micro_batch_size_per_gpu"),
        ("zero_optimisation", "zero_optimization"),
        ("ZeroOptimization", "zero_optimization"),
        ("gradient_accumulation", "gradient_accumulation_steps"),
        ("communication_dtype", "communication_data_type"),
        ("comms_config", None),
        ("min_train_batch_size", None),
        ("tensor_parallel_size", None),
        ("sparse_gradients", None),
        ("model-parallel-size", None),
        ("model", None),
    ],
)
def test_the_nearest_key(written, meant):
    assert keys.nearest(written, keys.of_release(Version("0.19.8")).keys.names) == meant


@pytest.mark.parametrize(
    ("block", "written", "meant"),
    [
        ("pipeline", "pipe_partition_method", None),
        ("pipeline", "pipe_partition", "pipe_partitioned"),
        ("zero_optimization", "offload_optimizer_device", None),
        ("zero_optimization", "gather_fp16_weights_on_model_save", "gather_16bit_weights_on_model_save"),
        ("zero_optimization", "stage3_max_live_params", "stage3_max_live_parameters"),
        ("zero_optimization", "stage2_max_live_parameters", "stage3_max_live_parameters"),
    ],
)
def test_the_nearest_key_of_a_block(block, written, meant):
    assert keys.nearest(written, keys.of_release(Version("0.19.8")).keys.below[block].names) == meant
