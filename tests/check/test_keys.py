"""The keys that a release reads, from its source and from the table."""

import json

import pytest
from packaging.version import Version

from dsfix.check import extract, keys

CONFIG = """\
from pydantic import Field
from .constants import *
from .config_utils import get_scalar_param, DeepSpeedConfigModel
from .zero.config import get_zero_config
from ..monitor import get_monitor
import torch

DEEPSPEED_OPTIMIZERS = ["adam", LION_OPTIMIZER]
LION_OPTIMIZER = "lion"
_REMOVED_TOP_LEVEL_CONFIG_KEYS = {"amp": "gone"}
_REMOVED_ZERO_CONFIG_KEYS = {"mics_shard_size": "gone"}


def get_fp16_enabled(param_dict):
    if FP16 in param_dict.keys():
        return get_scalar_param(param_dict[FP16], FP16_ENABLED, False)
    return False


def get_bf16_enabled(param_dict):
    for key in [BFLOAT16, "bfloat16"]:
        if key in param_dict:
            return get_scalar_param(param_dict[key], "enabled", False)


def get_dtype(param_dict, comm_type="communication_data_type"):
    return get_scalar_param(param_dict, comm_type, None)


def get_checkpoint_params(param_dict):
    return param_dict.get("checkpoint", {})


def get_pipeline_config(param_dict):
    config = {"stages": "auto", "interval": 0}
    for key, val in param_dict.get("pipeline", {}).items():
        config[key] = val
    return config


class Hybrid(DeepSpeedConfigModel):
    enabled: bool = False
    rounds: int = Field(5, gt=0)


class Checkpointing:
    def __init__(self, param_dict):
        self._read(param_dict.get("activation_checkpointing", {}))

    def _read(self, block):
        self.cpu = get_scalar_param(block, "cpu_checkpointing", False)


class DeepSpeedConfig(object):
    def __init__(self, config, mpu=None):
        self._param_dict = config
        if "sequence_parallel_size" in config:
            pass
        self._initialize_params(self._param_dict)

    def _initialize_params(self, param_dict):
        self.batch = get_scalar_param(param_dict, "train_batch_size", None)
        self.zero = get_zero_config(param_dict)
        get_fp16_enabled(param_dict)
        get_bf16_enabled(param_dict)
        get_dtype(param_dict)
        get_dtype(param_dict, "sequence_data_type")
        Checkpointing(param_dict)
        get_monitor(param_dict)
        Hybrid(**param_dict.get("hybrid_engine", {}))
        checkpoint = get_checkpoint_params(param_dict)
        self.universal = checkpoint.get("load_universal", False)
        self.pipeline = get_pipeline_config(param_dict)
        local = {}
        local["not_a_key"] = 1
"""
ZERO = """\
from typing import Optional
from pydantic import Field
from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from .offload_config import Offload


def get_zero_config(param_dict):
    block = {}
    if "zero_optimization" in param_dict:
        block = param_dict["zero_optimization"]
    return Zero(**block)


class Zero(DeepSpeedConfigModel):
    stage: int = 0
    prefetch: int = Field(1, alias="stage3_prefetch")
    offload: Optional[Offload] = None
    overlap: Optional[bool] = None
    ratio: float = 1.0
"""
FILES = {
    "__init__.py": "def initialize(model, config=None):\n    return config.get('data_parallel_size')\n",
    "runtime/__init__.py": "",
    "runtime/config.py": CONFIG,
    "runtime/constants.py": 'FP16 = "fp16"\nFP16_ENABLED = "enabled"\nBFLOAT16 = "bf16"\n',
    "runtime/config_utils.py": "from pydantic import BaseModel\nclass DeepSpeedConfigModel(BaseModel):\n    pass\n",
    "runtime/lr_schedules.py": 'WARMUP = "WarmupLR"\nVALID_LR_SCHEDULES = [WARMUP, "OneCycle"]\n',
    "runtime/zero/__init__.py": "",
    "runtime/zero/config.py": ZERO,
    "runtime/zero/offload_config.py": (
        "from deepspeed.runtime.config_utils import DeepSpeedConfigModel\n"
        "class Offload(DeepSpeedConfigModel):\n    device: str = 'none'\n"
    ),
    "runtime/pipe/__init__.py": "",
    "runtime/pipe/engine.py": (
        "class PipelineEngine:\n"
        "    def __init__(self):\n"
        "        self.interval = self._config.pipeline['interval']\n"
        "        self.reentrant = self._config.pipeline.get('use_reentrant')\n"
        "        self.other = self._config.batches['not_a_key']\n"
    ),
    "inference/__init__.py": "",
    "inference/config.py": (
        "from deepspeed.runtime.config_utils import DeepSpeedConfigModel\n"
        "from pydantic import Field\n"
        "class Parallel(DeepSpeedConfigModel):\n    size: int = 1\n    enabled = True\n"
        "class DeepSpeedInferenceConfig(DeepSpeedConfigModel):\n"
        "    kernels: bool = Field(False, alias='inject')\n"
        "    parallel: Parallel = {}\n"
    ),
    "monitor.py": (
        "def get_monitor(param_dict):\n"
        "    blocks = {key: param_dict.get(key, {}) for key in ('tensorboard', 'wandb')}\n"
        "    return blocks\n"
    ),
}


@pytest.fixture
def package(tmp_path):
    """A package that reads its config as DeepSpeed does; it cannot be imported."""
    root = tmp_path / "deepspeed"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


EXPECTED = {  # kind -> keys
    "": "train_batch_size sequence_parallel_size data_parallel_size communication_data_type sequence_data_type "
    "fp16 fp16/enabled bf16 bf16/enabled bfloat16 bfloat16/enabled activation_checkpointing "
    "activation_checkpointing/cpu_checkpointing tensorboard wandb zero_optimization/offload/device checkpoint "
    "checkpoint/load_universal pipeline pipeline/interval pipeline/use_reentrant optimizer/type=adam "
    "optimizer/type=lion scheduler/type=WarmupLR scheduler/type=OneCycle",
    "closed": "hybrid_engine zero_optimization zero_optimization/offload init_inference()/parallel",
    "bool": "hybrid_engine/enabled zero_optimization/overlap init_inference()/kernels init_inference()/inject "
    "init_inference()/parallel/enabled",
    "int": "hybrid_engine/rounds zero_optimization/stage zero_optimization/prefetch "
    "zero_optimization/stage3_prefetch init_inference()/parallel/size",
    "float": "zero_optimization/ratio",
    "removed": "zero_optimization/mics_shard_size amp",
}


def test_keys_are_read_from_source(package):
    expected = {key: kind for kind, names in EXPECTED.items() for key in names.split()}
    assert keys.flatten(extract.extract_keys(package)) == expected


def test_a_key_added_to_the_source_is_known(package):
    file = package / "runtime" / "zero" / "config.py"
    file.write_text(file.read_text() + "    brand_new: bool = False\n")
    assert extract.extract_keys(package).keys.find("zero_optimization", "brand_new") is not None


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
    file = package / "runtime" / "zero" / "config.py"
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
        ("0.13.1", ("compile",), False),
        ("0.13.2", ("compile",), True),
        ("0.15.0", ("compile",), False),
        ("0.16.6", ("compile",), True),
        ("0.12.2", ("pipeline", "pipe_partitioned"), False),
        ("0.12.3", ("pipeline", "pipe_partitioned"), True),
        ("0.12.0", ("pipeline", "use_reentrant"), True),
        ("0.12.0", ("checkpoint", "load_universal"), True),
    ],
)
def test_the_table(release, path, read):
    assert (keys.of_release(Version(release)).keys.find(*path) is not None) is read


def test_without_a_pipeline_engine_or_an_inference_config_their_keys_are_unknown(package):
    (package / "runtime" / "pipe" / "engine.py").unlink()
    (package / "inference" / "config.py").unlink()
    known = extract.extract_keys(package)
    assert known.keys.at("pipeline").below == {}
    assert known.inference.below == {}


@pytest.mark.parametrize(("release", "grain"), [("0.12.0", False), ("0.16.1", False), ("0.16.2", True)])
def test_the_table_of_inference_keys(release, grain):
    known = keys.of_release(Version(release)).inference
    assert known.closed
    assert known.find("tensor_parallel", "tp_size").kind == "int"
    assert (known.find("tp", "tp_grain_size") is not None) is grain


def test_removed_keys_in_the_table():
    known = keys.of_release(Version("0.19.8"))
    removed = {"/".join(path) for path, key in known.keys.walk() if key.removed}
    assert len(removed) == 14
    assert len([key for _, key in keys.of_release(Version("0.19.7")).keys.walk() if key.removed]) == 6
    assert not removed & set(known.keys.names)
    assert "onebitadam" not in known.optimizers
    assert "onebitadam" in keys.of_release(Version("0.19.6")).optimizers


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
