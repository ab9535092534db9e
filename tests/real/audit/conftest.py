"""Fixtures for the tests of the audit. Tests that need the real DeepSpeed are skipped if it is not installed."""

import contextlib
import functools
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from dsfix.audit.plan import Plan
from dsfix.audit.trial import ranks, trial

_CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
_ZERO = {
    "reduce_bucket_size": 700,
    "allgather_bucket_size": 700,
    "stage3_param_persistence_threshold": 20,
    "stage3_gather_16bit_weights_on_model_save": True,
}


@pytest.fixture(scope="session", autouse=True)
def _with_torch(has_torch):
    pass


@pytest.fixture(scope="session")
def release(has_deepspeed):
    """The installed DeepSpeed release."""
    return Version(metadata.version("deepspeed"))


@pytest.fixture(scope="session")
def plan():
    """Makes small plans: the script's own AdamW, clipping, two micro-batches per step, several buckets, one rank."""

    def make(stage, precision="fp32", zero=None, config=None, **options):
        """config, zero: added to the config and to its zero_optimization."""
        section = {} if precision == "fp32" else {precision: {"enabled": True}}
        if precision == "fp16":
            section["fp16"]["initial_scale_power"] = 16  # through 0.16 ZeRO starts with 2**32 by default
        whole = {**_CONFIG, **section, "zero_optimization": {**_ZERO, "stage": stage, **(zero or {})}, **(config or {})}
        defaults = {"ranks": 1, "steps": 2, "device": "cpu", "optimizer": "AdamW", "phases": ()}
        return Plan(whole, **{**defaults, **options})

    return make


@pytest.fixture(scope="session")
def tried():
    """`trial` in forked processes; test_audit_command.py has that they see what fresh ones see."""
    with contextlib.ExitStack() as stack:
        forked = functools.cache(lambda device: stack.enter_context(ranks(device)))
        yield lambda plan, **options: trial(plan, command=forked(plan.device), **{"timeout": 300.0, **options})


@pytest.fixture
def planted(tmp_path):
    """Makes a module that plants bugs of plants.py, by their names."""

    def make(*names):
        plants = Path(__file__).with_name("plants.py")
        calls = "".join(f"plants[{name!r}]()\n" for name in names)
        (tmp_path / "planted.py").write_text(f"import runpy\nplants = runpy.run_path({str(plants)!r})\n{calls}")
        return str(tmp_path / "planted.py")

    return make
