"""Modules of DeepSpeed that are run as programs, under the name `__main__`: `python -m`, a copied file, workers."""

import pytest

TOOL = """\
import json, sys
import deepspeed

def f(x):
    y = x + 1
    return y

def calls_f(x):
    return f(x)

if __name__ == "__main__":
    import dsfix
    told = [f(1), {each.id: each.outcome.value for each in dsfix.report()}, sys.gettrace() is None]
    print(json.dumps(told))
"""
FIXED = [3, {"cure": "applied"}, True]


@pytest.fixture
def tool(world):
    """deepspeed.utils.zero_to_fp32, a tool that adds one instead of two; dsfix is loaded as under `dsfix run`."""
    world.package(utils__zero_to_fp32=TOOL)
    world.patch("cure", 'PATCH = declare(Edit("deepspeed.utils.zero_to_fp32:f", replace="x + 1", code="x + 2"))')
    world.module("sitecustomize", "import dsfix")
    return world


def copy(tool, text=TOOL, name="zero_to_fp32.py"):
    file = tool.path / name
    file.write_text(text)
    return file


def test_as_a_module(tool):
    for _ in range(2):  # the second time from the cache
        result = tool.python("-m", "deepspeed.utils.zero_to_fp32")
        assert result.value == FIXED, result.err
        assert result.warnings == []


def test_as_a_module_that_deepspeed_imports_itself(tool):
    """runpy uses no finder for it, and warns."""
    tool.module("deepspeed.__init__", "import deepspeed.utils.zero_to_fp32\n")
    tool.module("deepspeed.utils.zero_to_fp32", TOOL.replace("import deepspeed\n", ""))
    result = tool.python("-m", "deepspeed.utils.zero_to_fp32")
    assert result.value == FIXED, result.err


@pytest.mark.parametrize("written", ["zero_to_fp32.py", "./zero_to_fp32.py", "{}"])
def test_a_copy(tool, written):
    file = copy(tool)
    result = tool.python(written.format(file))
    assert result.value == FIXED, result.err
    assert result.warnings == []


def test_the_installed_file_by_its_path(tool):
    assert tool.python(tool.site / "deepspeed" / "utils" / "zero_to_fp32.py").value == FIXED


def test_a_copy_from_another_release_is_left_alone_and_named(tool):
    file = copy(tool, TOOL.replace("y = x + 1", "y = 1 + x"))
    result = tool.python(file)
    assert result.value == [2, {"cure": "pending"}, True]
    (line,) = [line for line in result.log if "a release other than" in line]
    assert str(file) in line
    assert "`python -m deepspeed.utils.zero_to_fp32`" in line


def test_a_script_of_the_same_name_that_is_not_a_copy(tool):
    tool.module("deepspeed.launch", TOOL)
    tool.patch("cure", 'PATCH = declare(Edit("deepspeed.launch:f", replace="x + 1", code="x + 2"))')
    result = tool.python(copy(tool, TOOL.replace("import json, sys", "import sys, json"), "launch.py"))
    assert result.value == [2, {"cure": "pending"}, True]
    assert [line for line in result.log if "launch.py" in line] == []


WORKERS = """
if __name__ == "__main__":
    import multiprocessing
    for kind in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(kind).Pool(1) as pool:
            print(json.dumps([kind, *pool.map(calls_f, [1])]))
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_workers(tool, as_module):
    tool.module("deepspeed.utils.zero_to_fp32", TOOL + WORKERS)
    copy(tool, TOOL + WORKERS)
    result = tool.python(*(["-m", "deepspeed.utils.zero_to_fp32"] if as_module else ["zero_to_fp32.py"]))
    assert result.out.splitlines()[1:] == ['["fork", 3]', '["spawn", 3]', '["forkserver", 3]'], result.err


def test_imported_as_well(tool):
    text = TOOL + "    import deepspeed.utils.zero_to_fp32 as m\n    print(json.dumps([f(1), m.f(1)]))\n"
    tool.module("deepspeed.utils.zero_to_fp32", text)
    assert tool.python("-m", "deepspeed.utils.zero_to_fp32").value == [3, 3]


def test_under_a_tracer_the_tool_runs_unpatched(tool):
    copy(tool)
    trace = "import runpy, sys; sys.settrace(lambda *_: None); runpy.run_path('zero_to_fp32.py', run_name='__main__')"
    result = tool.python("-c", trace)
    assert result.value == [2, {"cure": "pending"}, False], result.err


def test_a_failing_tool_fails_as_without_dsfix(tool):
    text = TOOL.replace("if __name__", "raise OSError('a full disk')\nif __name__")
    tool.module("deepspeed.utils.zero_to_fp32", text)
    result = tool.python(copy(tool, text))
    assert result.code == 1
    assert result.err.splitlines()[-1] == "OSError: a full disk"
    assert "dsfix/engine" not in result.err


def test_trouble_under_strict_stops_the_tool(tool):
    tool.patch("cure", 'PATCH = declare(Edit("deepspeed.utils.zero_to_fp32:f", replace="x + 9", code="x + 2"))')
    result = tool.python(copy(tool), DSFIX_STRICT="1")
    assert result.code == 1
    assert "StrictError" in result.err.splitlines()[-1]
    assert result.out == ""
