"""The guards around deepspeed.initialize, on a stand-in for DeepSpeed."""

import pytest

DEEPSPEED = """
calls = []

def initialize(args=None, model=None, config=None, config_params=None):
    calls.append(model)
    return "engine", None, None, None

def other():
    pass
"""
# installs guards: the first of them with these texts, the others empty
GUARDS = """
import json, sys, types
import dsfix
from dsfix.guards import GuardError, initialize as guarded
def guards(*texts):
    for name, text in zip(guarded.GUARDS, [*texts, *[""] * len(guarded.GUARDS)]):
        module = types.ModuleType("dsfix.guards." + name)
        exec("from dsfix.guards import GuardError\\nimport __main__\\n" + text, vars(module))
        sys.modules[module.__name__] = module
called = []
"""
RECORDING = "def before(call): __main__.called.append(('before', call.model, call.config))\n"
RECORDING += "def after(call, result): __main__.called.append(('after', call.model, result[0]))"


@pytest.fixture
def around(world):
    """Runs a script in which `guards(*texts)` installs guards and `called` records the calls of RECORDING."""
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
    "imported again": "import deepspeed; del sys.modules['deepspeed']\n"
    "import deepspeed; deepspeed.initialize(model='m', config={'a': 1})",
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_calling_is_guarded_once(around, way):
    result = around(f"guards({RECORDING!r})\n{WAYS[way]}\ntell([called, sys.modules['deepspeed'].calls])")
    assert result.value == [[["before", "m", {"a": 1}], ["after", "m", "engine"]], ["m"]]
    assert result.warnings == []


@pytest.mark.parametrize("taken", ["from deepspeed import initialize", "import deepspeed"])
def test_deepspeed_imported_first(world, taken):
    world.package(init=DEEPSPEED)
    call = "initialize(model='m')" if "from" in taken else "deepspeed.initialize(model='m')"
    result = world.run(f"{taken}\n{GUARDS}\nguards({RECORDING!r})\n{call}\ntell(called)", DSFIX_LOG_LEVEL="WARNING")
    assert result.value == [["before", "m", None], ["after", "m", "engine"]]


def test_the_wrapper_looks_like_the_function(around):
    result = around("""
guards()
import copy, deepspeed, inspect, pickle
of = deepspeed.initialize
tell([of(model="m"), list(inspect.signature(of).parameters), inspect.getfullargspec(of).args, of.__name__,
      pickle.loads(pickle.dumps(of)) is copy.deepcopy(of) is of])
""")
    names = ["args", "model", "config", "config_params"]
    assert result.value == [["engine", None, None, None], names, names, "initialize", True]


@pytest.mark.parametrize(
    "text",
    [
        "def before(call): 1 / 0\ndef after(call, result): 1 / 0",
        "def after(call, result): 1 / 0",
        "def before(call): call.nothing",
    ],
)
def test_a_failing_guard_is_one_warning_and_the_job_continues(around, text):
    result = around(f"""
guards({text!r}, {RECORDING!r})
import deepspeed
tell([deepspeed.initialize(model="m")[0], len(called)])
""")
    assert result.value == ["engine", 2]
    [warning] = result.warnings
    assert "the guard config_check failed and was skipped: " in warning


def test_a_guard_that_cannot_be_loaded_is_one_warning(around):
    result = around("""
guards()
sys.modules["dsfix.guards." + guarded.GUARDS[-1]] = None
import deepspeed
tell(deepspeed.initialize(model="m")[0])
""")
    assert result.value == "engine"
    [warning] = result.warnings
    assert "the guard rank_check failed and was skipped: ModuleNotFoundError" in warning


@pytest.mark.parametrize(("when", "calls"), [("before(call)", []), ("after(call, result)", ["m"])])
def test_a_guard_may_stop_the_job(around, when, calls):
    result = around(f"""
guards("def {when}: raise GuardError('no')")
import deepspeed
try:
    deepspeed.initialize(model="m")
except GuardError as error:
    tell([str(error), isinstance(error, RuntimeError), deepspeed.calls])
""")
    assert result.value == ["no", True, calls]
    assert result.warnings == []


def test_an_error_of_deepspeed_is_unchanged(around):
    result = around(f"""
guards({RECORDING!r})
import deepspeed
try:
    deepspeed.initialize(modle="m")
except TypeError as error:
    tell([str(error), called])
""")
    message, called = result.value
    assert message.startswith("initialize() got an unexpected keyword argument 'modle'")
    assert called == []


@pytest.mark.parametrize(("variable", "calls"), [("DSFIX_DISABLE", 0), ("DSFIX_STRICT", 2)])
def test_disable_turns_guards_off(around, variable, calls):
    result = around(
        f"guards({RECORDING!r})\nimport deepspeed; deepspeed.initialize(); tell(len(called))", **{variable: "1"}
    )
    assert result.value == calls


def test_initialize_of_another_package_is_one_warning(world):
    world.package(init="from another import initialize")
    world.module("another", "def initialize(model=None): return (model,)")
    result = world.run("import dsfix, deepspeed; tell(deepspeed.initialize('m'))")
    assert result.value == ["m"]
    [warning] = result.warnings
    assert "deepspeed:initialize is not guarded: deepspeed:initialize has been replaced by another" in warning


def test_a_deepspeed_without_initialize_is_accepted(world):
    world.package(init="")
    assert world.run("import dsfix, deepspeed; tell(1)").warnings == []


def test_dsfix_imported_again_guards_once(around):
    result = around(f"""
import deepspeed
for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
    del sys.modules[name]
import dsfix
from dsfix.guards import GuardError, initialize as guarded
guards({RECORDING!r})
deepspeed.initialize(model="m")
tell(len(called))
""")
    assert result.value == 2


def test_dsfix_imported_again_below_the_wrapper_of_another_package_still_starts(around):
    result = around("""
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
    assert result.value == "engine"
    assert result.warnings == []


OTHERS = {"DSFIX_DEVICE_MAP": "off", "DSFIX_CHECK": "off"}


@pytest.mark.parametrize(("placement", "warnings"), [("off", 0), ("warn", 1)])
def test_without_torch_the_placement_guard_is_skipped(world, placement, warnings):
    world.package(init=DEEPSPEED)
    world.module("torch", "raise ImportError('no torch')")
    result = world.run("import dsfix, deepspeed; tell(deepspeed.initialize()[0])", DSFIX_PLACEMENT=placement, **OTHERS)
    assert result.value == "engine"
    assert len(result.warnings) == warnings
    assert all(
        "the guard placement failed and was skipped: ImportError: no torch" in warning for warning in result.warnings
    )


PUBLIC = ["DeviceMismatch", "Misplaced", "PlacementReport", "check_config", "check_tensors_device", "placement_report"]


def test_public_functions_are_loaded_on_first_access(world):
    result = world.run("""
        import dsfix
        late = ("dsfix.guards.devices", "dsfix.guards.placement_report", "torch", "deepspeed")
        before = [name for name in late if name in sys.modules]
        from dsfix import *
        dsfix.check_tensors_device(1, [None, {"a": "b"}], named=object())
        tell([before, [name for name in ("torch", "deepspeed") if name in sys.modules],
              [name for name in dsfix.__all__ if name not in globals()], hasattr(dsfix, "nothing")])
    """)
    assert result.value == [[], [], [], False]


def test_each_public_name_is_found_and_cached(world):
    results = "[getattr(dsfix, name).__name__ for name in names if getattr(dsfix, name) is vars(dsfix)[name]]"
    assert world.run(f"import dsfix; names = {PUBLIC}; tell({results})").value == PUBLIC
