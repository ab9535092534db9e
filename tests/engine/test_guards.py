"""What stands around deepspeed.initialize, on a stand-in for DeepSpeed."""

import pytest

DEEPSPEED = """
calls = []

def initialize(args=None, model=None, config=None, config_params=None):
    calls.append(model)
    return "engine", None, None, None

def other():
    pass
"""
# puts guards in: the first of them with these texts, the others empty
GUARDS = """
import json, sys, types
import dsfix
from dsfix.guards import GuardError, initialize as guarded
def guards(*texts):
    for name, text in zip(guarded.GUARDS, [*texts, *[""] * len(guarded.GUARDS)]):
        module = types.ModuleType("dsfix.guards." + name)
        exec("from dsfix.guards import GuardError\\nimport __main__\\n" + text, vars(module))
        sys.modules[module.__name__] = module
asked = []
"""
ASKED = "def before(call): __main__.asked.append(('before', call.model, call.config))\n"
ASKED += "def after(call, result): __main__.asked.append(('after', call.model, result[0]))"


@pytest.fixture
def around(world):
    """Runs a script in which `guards(name=text)` puts guards in place and `asked` is what ASKED was asked."""
    world.package(init=DEEPSPEED)

    def run(script, **environment):
        return world.run(GUARDS + script, DSFIX_LOG_LEVEL="WARNING", **environment)

    return run


WAYS = {
    "by the module": "import deepspeed; deepspeed.initialize(None, 'm', config={'a': 1})",
    "by name": "from deepspeed import initialize; initialize(model='m', config={'a': 1})",
    "by the older name": "import deepspeed; deepspeed.initialize(model='m', config_params={'a': 1})",
    "by the arguments": "import deepspeed\ndeepspeed.initialize(types.SimpleNamespace(deepspeed_config={'a': 1}), 'm')",
    "after a reload": "import deepspeed, importlib\nimportlib.reload(deepspeed).initialize(model='m', config={'a': 1})",
    "imported anew": "import deepspeed; del sys.modules['deepspeed']\n"
    "import deepspeed; deepspeed.initialize(model='m', config={'a': 1})",
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_the_call_is_looked_at_once(around, way):
    told = around(f"guards({ASKED!r})\n{WAYS[way]}\ntell([asked, sys.modules['deepspeed'].calls])")
    assert told.value == [[["before", "m", {"a": 1}], ["after", "m", "engine"]], ["m"]]
    assert told.warnings == []


@pytest.mark.parametrize("taken", ["from deepspeed import initialize", "import deepspeed"])
def test_deepspeed_imported_first(world, taken):
    world.package(init=DEEPSPEED)
    call = "initialize(model='m')" if "from" in taken else "deepspeed.initialize(model='m')"
    told = world.run(f"{taken}\n{GUARDS}\nguards({ASKED!r})\n{call}\ntell(asked)", DSFIX_LOG_LEVEL="WARNING")
    assert told.value == [["before", "m", None], ["after", "m", "engine"]]


def test_what_a_caller_sees(around):
    told = around("""
guards()
import deepspeed, inspect, pickle
tell([deepspeed.initialize(model="m"), list(inspect.signature(deepspeed.initialize).parameters),
      deepspeed.initialize.__name__, pickle.loads(pickle.dumps(deepspeed.initialize)) is deepspeed.initialize])
""")
    names = ["args", "model", "config", "config_params"]
    assert told.value == [["engine", None, None, None], names, "initialize", True]


@pytest.mark.parametrize(
    "text",
    [
        "def before(call): 1 / 0\ndef after(call, result): 1 / 0",
        "def after(call, result): 1 / 0",
        "def before(call): call.nothing",
    ],
)
def test_a_guard_that_fails_is_one_warning_and_the_job_goes_on(around, text):
    told = around(f"""
guards({text!r}, {ASKED!r})
import deepspeed
tell([deepspeed.initialize(model="m")[0], len(asked)])
""")
    assert told.value == ["engine", 2]
    [warning] = told.warnings
    assert "the guard config_check failed and is left out: " in warning


def test_a_guard_that_cannot_be_loaded_is_one_warning(around):
    told = around("""
guards()
sys.modules["dsfix.guards." + guarded.GUARDS[-1]] = None
import deepspeed
tell(deepspeed.initialize(model="m")[0])
""")
    assert told.value == "engine"
    [warning] = told.warnings
    assert "the guard placement failed and is left out: ModuleNotFoundError" in warning


@pytest.mark.parametrize(("question", "calls"), [("before(call)", []), ("after(call, result)", ["m"])])
def test_a_guard_may_stop_the_job(around, question, calls):
    told = around(f"""
guards("def {question}: raise GuardError('no')")
import deepspeed
try:
    deepspeed.initialize(model="m")
except GuardError as error:
    tell([str(error), isinstance(error, RuntimeError), deepspeed.calls])
""")
    assert told.value == ["no", True, calls]
    assert told.warnings == []


def test_an_error_of_deepspeed_is_its_own(around):
    told = around(f"""
guards({ASKED!r})
import deepspeed
try:
    deepspeed.initialize(modle="m")
except TypeError as error:
    tell([str(error), asked])
""")
    message, asked = told.value
    assert message.startswith("initialize() got an unexpected keyword argument 'modle'")
    assert asked == []


@pytest.mark.parametrize(("variable", "questions"), [("DSFIX_DISABLE", 0), ("DSFIX_STRICT", 2)])
def test_disable_leaves_it_alone(around, variable, questions):
    told = around(f"guards({ASKED!r})\nimport deepspeed; deepspeed.initialize(); tell(len(asked))", **{variable: "1"})
    assert told.value == questions


def test_initialize_that_another_package_has_put_there_is_one_warning(world):
    world.package(init="from another import initialize")
    world.module("another", "def initialize(model=None): return (model,)")
    told = world.run("import dsfix, deepspeed; tell(deepspeed.initialize('m'))")
    assert told.value == ["m"]
    [warning] = told.warnings
    assert "deepspeed:initialize is not looked at: deepspeed:initialize has been replaced by another" in warning


def test_a_deepspeed_without_initialize_is_no_trouble(world):
    world.package(init="")
    assert world.run("import dsfix, deepspeed; tell(1)").warnings == []


def test_dsfix_imported_anew_asks_once(around):
    told = around(f"""
import deepspeed
for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
    del sys.modules[name]
import dsfix
from dsfix.guards import GuardError, initialize as guarded
guards({ASKED!r})
deepspeed.initialize(model="m")
tell(len(asked))
""")
    assert told.value == 2


def test_dsfix_imported_anew_beneath_the_wrapper_of_another_still_starts(around):
    told = around("""
import deepspeed, functools
wrapped = deepspeed.initialize
deepspeed.initialize = functools.wraps(wrapped)(lambda *args, **kwargs: wrapped(*args, **kwargs))
guards()
for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
    del sys.modules[name]
import dsfix
guards()
tell(deepspeed.initialize(model="m")[0])
""")
    assert told.value == "engine"
    assert told.warnings == []


OTHERS = {"DSFIX_DEVICE_MAP": "off", "DSFIX_CHECK": "off"}


@pytest.mark.parametrize(("placement", "warnings"), [("off", 0), ("warn", 1)])
def test_without_torch_the_placement_guard_is_left_out(world, placement, warnings):
    world.package(init=DEEPSPEED)
    world.module("torch", "raise ImportError('no torch')")
    told = world.run("import dsfix, deepspeed; tell(deepspeed.initialize()[0])", DSFIX_PLACEMENT=placement, **OTHERS)
    assert told.value == "engine"
    assert len(told.warnings) == warnings
    assert all("the guard placement failed and is left out: ImportError: no torch" in each for each in told.warnings)


PUBLIC = ["DeviceMismatch", "Misplaced", "PlacementReport", "check_config", "check_tensors_device", "placement_report"]


def test_the_public_functions_load_nothing_before_they_are_asked_for(world):
    told = world.run("""
        import dsfix
        late = ("dsfix.guards.devices", "dsfix.guards.placement_report", "torch", "deepspeed")
        before = [name for name in late if name in sys.modules]
        from dsfix import *
        dsfix.check_tensors_device(1, [None, {"a": "b"}], named=object())
        tell([before, [name for name in ("torch", "deepspeed") if name in sys.modules],
              [name for name in dsfix.__all__ if name not in globals()], hasattr(dsfix, "nothing")])
    """)
    assert told.value == [[], [], [], False]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_found_and_kept(world, name):
    told = world.run(f"import dsfix; first = dsfix.{name}; tell([first is vars(dsfix)[{name!r}], first.__name__])")
    assert told.value == [True, name]
