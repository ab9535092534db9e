"""The line after deepspeed.initialize that names the applied patches which this config and model concern."""

import pytest

DEEPSPEED = """
import types

class Linear:
    pass

class Model:
    def __init__(self, *trained): self.trained = trained
    def parameters(self): return [types.SimpleNamespace(requires_grad=each) for each in self.trained]
    def modules(self): return [self]

class PipelineModule(Model): pass

def initialize(args=None, model=None, config=None, decay=0.0):
    optimizer = types.SimpleNamespace(param_groups=[{"weight_decay": decay}, {"lr": 0.1}])
    engine = types.SimpleNamespace(
        _config=types.SimpleNamespace(_param_dict=config), module=model, optimizer=optimizer
    )
    return engine, None, None, None

def f(): return 1
def g(): return 1
def h(): return 1
def k(): return 1
def decayed(): return 1
def odd(): return 1
"""
CONDITIONS = {
    "p_stage": ("f", "lambda job: job.stage == 3"),
    "p_frozen": ("g", "lambda job: job.frozen"),
    "p_pipeline": ("h", "lambda job: job.pipeline"),
    "p_decayed": ("decayed", "lambda job: job.decays"),
    "p_unknown": ("k", "None"),
    "p_odd": ("odd", "lambda job: 1 / 0"),
}
ALONE = """
import sys, types
import dsfix
for name in ("config_check", "device_map", "placement"):  # the other guards want the real DeepSpeed
    sys.modules["dsfix.guards." + name] = types.ModuleType(name)
"""
STAGE3 = "{'zero_optimization': {'stage': 3}}"


@pytest.fixture
def lines(world):
    """Runs a script with all six patches applied; the lines that name those concerned."""
    world.package(init=DEEPSPEED)
    for name, (function, condition) in CONDITIONS.items():
        edit = f"Edit('deepspeed:{function}', 'return 2', replace='return 1')"
        world.patch(name, f"PATCH = declare({edit}, config={condition})")

    def run(script, **environment):
        told = world.run(f"{ALONE}\nfrom deepspeed import *\n{script}", **environment)
        assert told.warnings == []
        return [line.partition("INFO: ")[2] for line in told.log if "applied patches" in line]

    return run


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (f"initialize(None, Model(True), {STAGE3})", ["p_stage"]),
        (f"initialize(None, Model(True, False), {STAGE3})", ["p_frozen", "p_stage"]),
        ("initialize(None, PipelineModule(True), {})", ["p_pipeline"]),
        ("initialize(None, Model(True), {}, 0.1)", ["p_decayed"]),
        ("initialize(None, Model(True), {'optimizer': {'params': {'weight_decay': 0.1}}})", ["p_decayed"]),
        (f"initialize(None, Model(True), {STAGE3}, 'odd')", ["p_stage"]),
    ],
)
def test_the_patches_that_the_config_and_the_model_concern_are_named(lines, call, named):
    assert lines(call) == [f"{len(named)} of 6 applied patches concern this config: {', '.join(named)}"]


def test_none_is_said_too(lines):
    expected = "none of 6 applied patches fixes a bug that this config alone is known to trigger"
    assert lines("initialize(None, Model(True), {})") == [expected]


def test_several_engines_of_one_kind_are_one_line(lines):
    assert len(lines(f"[initialize(None, Model(True), {STAGE3}) for _ in range(3)]")) == 1
    assert len(lines(f"initialize(None, Model(True), {STAGE3}); initialize(None, Model(False), {STAGE3})")) == 2


@pytest.mark.parametrize(
    ("call", "environment"),
    [
        (f"initialize(None, Model(True), {STAGE3})", {"RANK": "1"}),
        ("initialize(None, Model(True), None)", {}),  # the engine has read no config
    ],
)
def test_other_ranks_and_jobs_without_a_config_say_nothing(lines, call, environment):
    assert lines(call, **environment) == []
