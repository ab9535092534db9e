"""`dsfix.require`: a script that depends on a fix does not run without it."""

import pytest

from tests.samples import assert_sample

REQUIRE = """
    try:
        dsfix.require({ids})
    except dsfix.RequirementError as error:
        tell(str(error))
    else:
        tell("met")
"""
LATE = "DeepSpeed was imported first: move `import dsfix` to the first line of the script"


def required(world, imports, *ids, **environment):
    return world.run(f"    {imports}\n{REQUIRE.format(ids=', '.join(map(repr, ids)))}", **environment).value


@pytest.mark.parametrize("imports", ["import dsfix", "import dsfix, deepspeed.m", "import dsfix, json, deepspeed"])
def test_met_before_and_after_the_import_of_deepspeed(simple, imports):
    simple.patch("other", 'PATCH = declare(Edit("deepspeed.m:f", replace="x", code="x"), affects={"deepspeed": "<1"})')
    assert required(simple, imports) == "met"
    assert required(simple, imports, "Cure", "other") == "met"


def test_met_if_deepspeed_is_not_installed(world):
    world.patch("cure", 'PATCH = declare(Edit("deepspeed.m:f", replace="x", code="x"))')
    assert required(world, "import dsfix", "cure") == "met"


def test_met_if_dsfix_is_reloaded(simple):
    assert required(simple, "import dsfix, deepspeed, importlib; importlib.reload(dsfix)") == "met"


@pytest.mark.parametrize(
    ("imports", "environment", "said"),
    [
        ("import deepspeed, dsfix", {}, LATE),
        ("import deepspeed.m; import dsfix", {"DSFIX_SKIP": "cure"}, LATE),
        ("import dsfix", {"DSFIX_DISABLE": "1"}, "DSFIX_DISABLE is set"),
        (
            "import os; os.scandir = None; import dsfix",
            {},
            "it could not start: TypeError: 'NoneType' object is not callable",
        ),
    ],
)
def test_not_met(simple, imports, environment, said):
    assert required(simple, imports, **environment) == f"this script requires dsfix, but {said}"


def test_the_sample_in_the_docs(simple):
    message = required(simple, "import deepspeed, dsfix")
    assert_sample("frameworks.md", f"dsfix.outcome.RequirementError: {message}")


@pytest.mark.parametrize(
    ("id", "environment", "said"),
    [
        ("cure", {"DSFIX_SKIP": "cure"}, "cure is disabled: named in DSFIX_SKIP"),
        ("cure", {"DSFIX_ONLY": "else"}, "cure is disabled: not named in DSFIX_ONLY"),
        ("drifts", {}, "drifts is drifted: deepspeed 1.0: `x + 7` occurs 0 times in f, expected 1"),
        ("curse", {}, "no patch is called 'curse'; did you mean cure?"),
        (7948, {}, "no patch is called '7948'; `python -m dsfix find WORDS` searches"),
    ],
)
def test_a_patch_that_is_missing(simple, id, environment, said):
    simple.patch("drifts", 'PATCH = declare(Edit("deepspeed.m:f", replace="x + 7", code="x + 8"))')
    assert required(simple, "import dsfix, deepspeed.m", **environment) == "met"
    assert required(simple, "import dsfix, deepspeed.m", id, **environment) == f"this script requires dsfix, but {said}"


def test_a_patch_that_was_reverted(simple):
    said = required(simple, "import dsfix, deepspeed.m; dsfix.revert('cure')", "cure")
    assert said.startswith("this script requires dsfix, but cure is disabled: ")
