"""The device_map guards and the wrappers that call them, on stand-ins: what they reject and what they accept.

tests/real/guards has the tests with the real DeepSpeed, transformers and accelerate.
"""

import pytest

from dsfix.guards import dispatch
from dsfix.settings import Settings
from tests.samples import assert_sample

MODEL = '''
class Device:
    def __init__(self, name):
        self.name, self.type = name, name.partition(":")[0]
    def __str__(self):
        return self.name

class Parameter:
    def __init__(self, device):
        self.device = Device(device)

class Hook:
    """Like accelerate's AlignDevicesHook."""
    def __init__(self, execution_device, offload=False, io_same_device=False):
        self.execution_device, self.offload, self.io_same_device = execution_device, offload, io_same_device

class Sequential:
    def __init__(self, *hooks):
        self.hooks = hooks

class Module:
    def __init__(self, hook=None, device_map=None):
        if hook is not None:
            self._hf_hook = hook
        if device_map is not None:
            self.hf_device_map = device_map

class Model(Module):
    """parts: qualified name -> module. parameters: qualified name -> device."""
    def __init__(self, parts=None, parameters=None, hook=None, device_map=None):
        super().__init__(hook, device_map)
        self.parts = parts or {}
        self.parameters = {"a.weight": "cuda:0"} if parameters is None else parameters
    def named_modules(self):
        return [("", self), *self.parts.items()]
    def named_parameters(self):
        return [(name, Parameter(device)) for name, device in self.parameters.items()]

def on(*devices, **options):
    """Blocks b0, b1, ... with a child each, all with hooks, as dispatch_model leaves them."""
    parts = {}
    for number, device in enumerate(devices):
        parts[f"b{number}"] = parts[f"b{number}.child"] = Module(Hook(device))
    names = {f"b{number}": device for number, device in enumerate(devices)}
    return Model(parts, hook=Hook(devices[0], io_same_device=True), device_map=names, **options)
'''

DEEPSPEED = """
import sys
from deepspeed import accelerator
made = []
def initialize(args=None, model=None, config=None):
    made.append(model)
    return [("engine", model), None]
"""
ACCELERATOR = """
class Accelerator:
    def device_name(self):
        return KIND
    def current_device(self):
        return 5
KIND = "cuda"
def get_accelerator():
    return Accelerator()
"""
DDP = '''
class DistributedDataParallel:
    def __init__(self, module, device_ids=None, output_device=None):
        """The original."""
        self.module, self.device_ids = module, device_ids
'''
CUDA = """
def device_count():
    return 8
def current_device():
    return 3
"""

_made = {}
exec(MODEL, _made)  # for tests in this process; the others import it as a module
Hook, Model, Module, on = (_made[name] for name in ("Hook", "Model", "Module", "on"))


@pytest.fixture
def job(world):
    """Runs a script with a stand-in DeepSpeed, torch and models; `refusal(call)` is the GuardError of a call, or ""."""
    world.package(init=DEEPSPEED, accelerator=ACCELERATOR)
    world.package(name="torch", init="from torch import cuda", cuda=CUDA, nn__parallel__distributed=DDP)
    world.module("models", MODEL)

    def run(script, **environment):
        return world.run(
            "import dsfix, deepspeed\n"
            "from models import *\n"
            "from torch.nn.parallel.distributed import DistributedDataParallel\n"
            "def refusal(call):\n"
            "    try:\n"
            "        call()\n"
            "        return ''\n"
            "    except dsfix.guards.GuardError as error:\n"
            "        return str(error)\n"
            "def start(model, args=None):\n"
            "    return refusal(lambda: deepspeed.initialize(args, model=model))\n" + script,
            **{"DSFIX_PLACEMENT": "off", **environment},  # it needs the real torch
        )

    return run


@pytest.mark.parametrize(
    ("given", "here", "expected"),
    [
        (1, "cuda:0", "cuda:1"),
        ("1", "cuda:0", "cuda:1"),
        ("cuda:1", "cuda:0", "cuda:1"),
        ("cuda", "cuda:3", "cuda:3"),
        (1, "xpu:0", "xpu:1"),
        ("cpu", "cuda:0", "cpu"),
        ("cpu:0", "cuda:0", "cpu"),
        ("cpu", "cpu", "cpu"),
        (0, "cpu", "cuda:0"),
        ("disk", "cuda:0", "disk"),
    ],
)
def test_devices_in_a_map_are_normalized(given, here, expected):
    assert dispatch.label(given, here) == expected


def test_a_model_without_a_map_has_no_dispatch():
    assert dispatch.find_dispatch(Model(), "cuda:0") is None
    assert dispatch.find_dispatch(None, "cuda:0") is None
    assert dispatch.find_dispatch(Model({"a": Module(object())}), "cuda:0") is None  # a different kind of hook


def test_a_few_outermost_modules_are_named_per_device():
    result = dispatch.find_dispatch(on(0, 0, 0, 0, 1, "cuda:10"), "cuda:0")
    assert result.describe().splitlines() == ["  cuda:0: b0, b1, b2 and 1 more", "  cuda:1: b4", "  cuda:10: b5"]


def test_a_child_on_a_different_device_from_its_parent_is_named():
    model = Model({"a": Module(Hook(0)), "a.b": Module(Hook(1)), "a.b.c": Module(Hook(0))})
    described = dispatch.find_dispatch(model, "cuda:0").describe()
    assert described.splitlines() == ["  cuda:0: a, a.b.c", "  cuda:1: a.b"]


def test_the_sample_in_the_docs(job):
    devices = {"embed_tokens": 0, "layers.0": 0, "layers.1": 1, "rotary_emb": 0}
    parts = ", ".join(f"'model.{name}': Module(Hook({device}))" for name, device in devices.items())
    result = job(f"tell(start(Model({{{parts}}})))", LOCAL_RANK="0")
    assert_sample("guards.md", f"dsfix.guards.GuardError: {result.value}")


@pytest.mark.parametrize(
    "model",
    [
        "Model()",
        "None",
        "on(2)",
        "on(2, 'cuda:2', 'cuda')",
        "Model(device_map={'': 2})",
        "Model(device_map={'': 'cpu'})",
        "Model(device_map={'a': 0, 'b': 1})",  # its hooks have been removed: the engine moves the parameters
        "Model({'a': Module(Hook(None, io_same_device=True))})",  # as added by PEFT
    ],
)
def test_near_misses_pass_silently(job, model):
    result = job(f"tell([start({model}), len(deepspeed.made)])", LOCAL_RANK="2")
    assert result.value == ["", 1]
    assert result.warnings == []


@pytest.mark.parametrize(
    "model",
    [
        "on(1)",
        "on(2, 'cpu')",
        "Model({'a': Module(Sequential(Sequential(Hook(None), Hook(1)), Hook(None)))})",
        "Model({'base_model.model': on(2), 'base_model.model.b0': Module(Hook(1))})",
    ],
)
def test_hooks_on_a_different_device_stop_the_job(job, model):
    result = job(f"tell([start({model}), len(deepspeed.made)])", LOCAL_RANK="2")
    assert "devices other than cuda:2" in result.value[0]
    assert result.value[1] == 0


def test_parameters_on_meta_without_a_map_pass(job):
    result = job("tell([start(Model(parameters={'a.weight': 'meta'})), len(deepspeed.made)])", LOCAL_RANK="0")
    assert result.value == ["", 1]


def test_a_map_of_a_single_wrong_device_is_one_warning(job):
    result = job("tell([start(Model(device_map={'': 0})), len(deepspeed.made)])", LOCAL_RANK="2")
    assert result.value == ["", 1]
    (warning,) = result.warnings
    assert "device_map placed the model on cuda:0, and DeepSpeed moves it to cuda:2" in warning


@pytest.mark.parametrize(
    ("environment", "args", "device"),
    [
        ({"LOCAL_RANK": "2"}, "None", 2),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "None", 2),
        ({"LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "None", 1),
        ({"LOCAL_RANK": "1"}, "type('Args', (), {'device_rank': 4})", 4),
        ({}, "None", 5),  # the current one
    ],
)
def test_the_device_is_that_of_the_engine(job, environment, args, device):
    result = job(f"tell([start(on({device}), {args}), start(on({device + 1}), {args})])", **environment)
    right, wrong = result.value
    assert right == ""
    assert f"devices other than cuda:{device}," in wrong


def test_on_the_cpu_a_map_of_the_cpu_passes(job):
    result = job("deepspeed.accelerator.KIND = 'cpu'\ntell([start(on('cpu')), start(on('cpu', 0))])", LOCAL_RANK="1")
    assert result.value[0] == ""
    assert "devices other than cpu" in result.value[1]


def test_off_checks_nothing(job):
    result = job(
        "DistributedDataParallel(on(0, 1), device_ids=[0]); tell([start(on(0, 1)), len(deepspeed.made)])",
        LOCAL_RANK="0",
        DSFIX_DEVICE_MAP="off",
    )
    assert result.value == ["", 1]
    assert result.warnings == []


def test_ddp_with_device_ids_needs_the_whole_model_there(job):
    result = job(
        """
two = {"b0.weight": "cuda:0", "b1.weight": "cuda:1"}
tell([
    refusal(lambda: DistributedDataParallel(on(0, 1, parameters=two), device_ids=[0])),
    refusal(lambda: DistributedDataParallel(on(0), [1])),
    refusal(lambda: DistributedDataParallel(Model(device_map={"": 0}), device_ids=["cuda:1"])),
    refusal(lambda: DistributedDataParallel(on(0), device_ids=["cuda:0"])),
    refusal(lambda: DistributedDataParallel(Model(), device_ids=[1])),
])
""",
        LOCAL_RANK="0",
    )
    several, other, mapped, own, unmapped = result.value
    assert "devices other than cuda:0, but DistributedDataParallel was given cuda:0 as device_ids" in several
    assert "cuda:1: b1" in several
    assert "devices other than cuda:1" in other
    assert "devices other than cuda:1" in mapped
    assert "\n  cuda:0: a\n" in mapped
    assert own == unmapped == ""


@pytest.mark.parametrize(("processes", "devices", "warnings"), [(1, 8, 0), (2, 4, 0), (2, 5, 1), (8, 8, 1), (8, 1, 0)])
def test_ddp_without_device_ids_warns_about_too_few_devices(job, processes, devices, warnings):
    result = job(
        f"tell(refusal(lambda: DistributedDataParallel(on(*range({devices})))))",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE=str(processes),
    )
    assert result.value == ""
    assert len(result.warnings) == warnings


def test_ddp_on_the_cpu(job):
    result = job("""
tell([
    refusal(lambda: DistributedDataParallel(on("cpu", parameters={"b0.weight": "cpu"}))),
    refusal(lambda: DistributedDataParallel(Model({"b0": Module(Hook(0, offload=True))}, {"b0.weight": "meta"}))),
])
""")
    assert result.value[0] == ""
    assert "offloaded" in result.value[1]
    assert result.warnings == []


def test_ddp_with_ignored_parameters_passes(job):
    result = job("""
model = on(0, parameters={"b0.weight": "cuda:0", "b1.weight": "meta"})
offloaded = refusal(lambda: DistributedDataParallel(model))
model._ddp_params_and_buffers_to_ignore = ["b1.weight"]
tell([offloaded, refusal(lambda: DistributedDataParallel(model))])
""")
    assert "offloaded" in result.value[0]
    assert result.value[1] == ""


def test_ddp_stays_the_same_class(job):
    result = job(
        """
import copy, importlib, inspect, pickle
import torch.nn.parallel.distributed as home

class Derived(DistributedDataParallel):
    def __init__(self, model, **options):
        super().__init__(model, **options)

ddp = DistributedDataParallel(Model())
kinds = [pickle.loads(pickle.dumps(DistributedDataParallel)) is DistributedDataParallel, copy.deepcopy(ddp).device_ids]
kinds += [type(pickle.loads(pickle.dumps(ddp))) is DistributedDataParallel]
kinds += [list(inspect.signature(DistributedDataParallel).parameters), DistributedDataParallel.__init__.__doc__]
guarded = [refusal(lambda: Derived(on(0, 1), device_ids=[0])) != ""]
importlib.reload(home)
guarded += [refusal(lambda: home.DistributedDataParallel(on(0, 1), device_ids=[0])) != ""]
try:
    DistributedDataParallel()
except TypeError as error:
    message = str(error)
tell([kinds, guarded, message])
""",
        LOCAL_RANK="0",
    )
    kinds, guarded, message = result.value
    assert kinds == [True, None, True, ["module", "device_ids", "output_device"], "The original."]
    assert guarded == [True, True]
    assert "'module'" in message


def test_importing_dsfix_loads_no_guard(world):
    world.package(init=DEEPSPEED, accelerator=ACCELERATOR)
    result = world.run("import dsfix, deepspeed, sys; tell([n for n in sys.modules if 'guards.' in n or n == 'wrapt'])")
    assert result.value == ["dsfix.guards.initialize"]


def test_an_unknown_mode_is_reported_and_the_default_used():
    settings = Settings.read({"DSFIX_DEVICE_MAP": "fix"})
    assert settings.device_map == "error"
    assert "DSFIX_DEVICE_MAP='fix' is not one of error, repair, off" in settings.complaints[0]
