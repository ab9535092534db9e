"""Every outcome with its reason and message, and the environment variables that change it."""

import json

import pytest

from tests.stand_ins import FLAW

CURE = 'Edit("deepspeed.m:f", replace="x + 1", code="x + 2")'
USE = "import dsfix, deepspeed.m; tell([deepspeed.m.f(1), outcomes().get('cure'), reasons().get('cure')])"

OUTCOMES = {
    "applied": (CURE, "", "", "Edit of deepspeed.m:f"),
    "pending": ('Edit("deepspeed.n:f", replace="x + 1", code="x")', "", "", "waits for the import of deepspeed.n"),
    "not-affected": (CURE, "affects={'deepspeed': '<1'}", "", "deepspeed 1.0 is outside <1"),
    "already-fixed": (
        'Edit("deepspeed.m:f", replace="x + 2", code="x + 1")',
        "",
        "",
        "`x + 1` is in the source already",
    ),
    "drifted": (
        'Edit("deepspeed.m:f", replace="x + 3", code="x + 4")',
        "",
        "",
        "`x + 3` occurs 0 times in f, expected 1",
    ),
    "conflict": (CURE, "", "import deepspeed.m; deepspeed.m.f = json.dumps", "has been replaced by json.dumps"),
    "disabled": (CURE, "default=False", "", "off by default; DSFIX_ALSO=cure enables it"),
    "failed": ('Edit("deepspeed.m:f", after="y = x + 1", code="yield")', "", "", "a different kind of function"),
}
TROUBLE = {"drifted", "conflict", "failed"}


@pytest.fixture
def one(world):
    def make(outcome):
        change, fields, first, reason = OUTCOMES[outcome]
        world.package(m=FLAW, n=FLAW)
        world.patch("cure", f"PATCH = declare({change}{fields and ', ' + fields})")
        return world, first + "\n" + USE, reason

    return make


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_has_a_reason_and_trouble_causes_one_warning(one, outcome):
    world, script, reason = one(outcome)
    result = world.run(script.replace("deepspeed.m.f(1)", "0"))
    assert result.value[1] == outcome
    assert reason in result.value[2]
    assert len(result.warnings) == (outcome in TROUBLE)
    for line in result.warnings:
        assert f"cure was not applied ({outcome})" in line
        assert result.value[2] in line
        assert "Remedy: " in line
        assert "DSFIX_SKIP=cure" in line
    assert [line for line in result.err.splitlines() if not line.startswith("[dsfix]")] == []


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_strict_turns_every_trouble_into_an_error(one, outcome):
    world, script, reason = one(outcome)
    trouble = outcome in TROUBLE
    result = world.run(script.replace("deepspeed.m.f(1)", "0"), code=1 if trouble else 0, DSFIX_STRICT="1")
    if trouble:
        last = result.err.splitlines()[-1]
        assert last.startswith(f"dsfix.outcome.StrictError: dsfix: cure was not applied ({outcome})")
        assert reason in last
        assert "During handling" not in result.err
    assert result.warnings == []


def test_one_info_line_per_job_and_only_on_rank_0(simple):
    script = """
        import dsfix, deepspeed.m, importlib, subprocess, sys
        importlib.reload(deepspeed)
        done = subprocess.run([sys.executable, "-c", "import dsfix, deepspeed"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        tell(done.stderr)
    """
    result = simple.run(script)
    assert len(result.log) == 1
    assert result.log[0].startswith("[dsfix] INFO: deepspeed 1.0")
    assert result.value == ""
    for variable in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK"):
        assert simple.run("import dsfix, deepspeed", **{variable: "3"}).log == []
        assert len(simple.run("import dsfix, deepspeed", **{variable: "0"}).log) == 1
    assert len(simple.run("import dsfix, deepspeed", RANK="0", LOCAL_RANK="3").log) == 1


def test_the_line_of_a_job_counts_and_names_what_is_in_trouble(simple):
    simple.patch("odd", 'PATCH = declare(Edit("deepspeed.m:f", replace="1 + 1", code="2"))')
    simple.patch("old", 'PATCH = declare(Edit("deepspeed.m:f", replace="x", code="y"), affects={"deepspeed": "<1"})')
    simple.module("deepspeed.__init__", "from . import m\n")
    [warning, line] = simple.run("import dsfix, deepspeed").log
    assert "odd was not applied (drifted)" in warning
    assert ": 1 applied, 1 not-affected, 1 drifted (odd); " in line
    assert "cure" not in line


def test_warnings_are_given_on_every_rank(one):
    world, script, _ = one("drifted")
    assert len(world.run(script, RANK="3").warnings) == 1


@pytest.mark.parametrize("first", [True, False])
def test_an_application_that_logs_gets_the_line_once(simple, first):
    logs = "import logging; logging.basicConfig(format='APP %(name)s %(message)s', level=logging.WARNING)"
    lines = [logs, "import dsfix"]
    result = simple.run("\n".join(lines if first else lines[::-1]) + "\nimport deepspeed.m")
    assert [line[:22] for line in result.err.splitlines()] == ["APP dsfix deepspeed 1."]


@pytest.mark.parametrize(("level", "lines"), [("info", 2), ("WARNING", 1), ("ERROR", 0), ("DEBUG", 2)])
def test_log_level(simple, level, lines):
    simple.patch("odd", 'PATCH = declare(Edit("deepspeed.m:f", replace="1 + 1", code="2"))')
    assert len(simple.run("import dsfix, deepspeed.m, deepspeed", DSFIX_LOG_LEVEL=level).log) == lines


@pytest.mark.parametrize(
    ("environment", "value", "words"),
    [
        ({"DSFIX_SKIP": "cure"}, 2, "named in DSFIX_SKIP"),
        ({"DSFIX_SKIP": " more, cure "}, 2, "named in DSFIX_SKIP"),
        ({"DSFIX_SKIP": "more cure"}, 2, "named in DSFIX_SKIP"),
        ({"DSFIX_SKIP": "more"}, 3, "Edit of"),
        ({"DSFIX_ONLY": "more"}, 2, "not named in DSFIX_ONLY"),
        ({"DSFIX_ONLY": "more,cure"}, 3, "Edit of"),
        ({"DSFIX_ONLY": "cure", "DSFIX_SKIP": "cure"}, 2, "named in DSFIX_SKIP"),
        ({"DSFIX_ONLY": ""}, 3, "Edit of"),
        ({"DSFIX_ALSO": "more"}, 3, "Edit of"),
        ({"DSFIX_ALSO": "more", "DSFIX_SKIP": "cure"}, 2, "named in DSFIX_SKIP"),
        ({"DSFIX_SEVERITY": "crash,import"}, 3, "Edit of"),
        ({"DSFIX_SEVERITY": "import"}, 2, "its severity, crash, is not named in DSFIX_SEVERITY"),
        ({"DSFIX_SEVERITY": ""}, 3, "Edit of"),
        ({"DSFIX_DISABLE": "1"}, 2, "DSFIX_DISABLE is set"),
        ({"DSFIX_DISABLE": "Yes"}, 2, "DSFIX_DISABLE is set"),
        ({"DSFIX_DISABLE": "0"}, 3, "Edit of"),
        ({"DSFIX_DISABLE": ""}, 3, "Edit of"),
    ],
)
def test_settings_that_disable_patches(simple, environment, value, words):
    simple.patch("more", 'PATCH = declare(Edit("deepspeed.m:f", before="return y", code="y += 10"), default=False)')
    result = simple.run(USE, **environment)
    named = environment.get("DSFIX_ONLY", "") + environment.get("DSFIX_ALSO", "")
    assert result.value[0] == value + 10 * ("more" in named)  # off unless it is named
    assert words in result.value[2]
    assert result.warnings == []


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"DSFIX_SKIP": "crue"}, "DSFIX_SKIP: no patch is called 'crue'; did you mean cure?"),
        ({"DSFIX_ONLY": "cure, zzz"}, "DSFIX_ONLY: no patch is called 'zzz'; `python -m dsfix find WORDS` searches"),
        ({"DSFIX_ALSO": "zzz"}, "DSFIX_ALSO: no patch is called 'zzz'; `python -m dsfix find WORDS` searches"),
        ({"DSFIX_SEVERTIY": "1"}, "unknown variable DSFIX_SEVERTIY: ignored; did you mean DSFIX_SEVERITY?"),
        ({f"DSFIX_{each}": "1" for each in range(9)}, ", DSFIX_2 and 6 more: ignored"),
        ({"DSFIX_SEVERITY": "crash imports"}, "DSFIX_SEVERITY: unknown severity 'imports'; must be one of"),
        ({"DSFIX_STRICT": "maybe"}, "DSFIX_STRICT must be 1 or 0, got 'maybe': ignored"),
        ({"DSFIX_RANK_CHECK": "maybe"}, "DSFIX_RANK_CHECK must be 1 or 0, got 'maybe': ignored"),
        ({"DSFIX_DISABLE": "2"}, "DSFIX_DISABLE must be 1 or 0, got '2': ignored"),
        ({"DSFIX_LOG_LEVEL": "loud"}, "DSFIX_LOG_LEVEL='loud' is not one of DEBUG, INFO"),
    ],
)
def test_bad_values_are_one_warning_each(simple, environment, words):
    result = simple.run(USE, **environment)
    assert result.value[0] == 3
    assert len(result.warnings) == 1
    assert words in result.warnings[0]


def test_bad_values_are_one_warning_in_a_job(simple):
    script = f"""
    import subprocess, sys
    {USE}
    if "RANK" not in sys.modules["os"].environ:
        subprocess.run([sys.executable, "-c", "import dsfix"], check=True)
    """
    assert len(simple.run(USE, RANK="0", DSFIX_ZZZ="1").warnings) == 1
    assert simple.run(USE, RANK="3", DSFIX_ZZZ="1").warnings == []
    assert len(simple.run(script, DSFIX_ZZZ="1").warnings) == 1


def test_under_strict_a_bad_value_stops_the_import_and_the_second_one_too(simple):
    script = """
    caught = []
    for _ in range(2):
        try:
            import dsfix
        except RuntimeError as error:
            caught.append(f"{type(error).__name__}: {error}")
    import deepspeed.m
    tell([*caught, deepspeed.m.f(1)])
    """
    first, second, unpatched = simple.run(script, DSFIX_STRICT="1", DSFIX_SKIP="crue").value
    assert (first, unpatched) == (second, 2)
    assert first.startswith("StrictError: dsfix: DSFIX_SKIP: no patch is called 'crue'")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise OSError('no')", "OSError: no"),
        ("import", "SyntaxError"),
        ("PATCH = 3", "it declares no PATCH"),
        ("PATCH = declare(Edit('deepspeed.m', replace='x', code='y'))", "is not of the form"),
        ("PATCH = declare(Edit('deepspeed.m:f', code='y'))", "give exactly one of after, before, replace"),
    ],
)
def test_one_broken_patch_does_not_affect_the_others(simple, text, words):
    simple.patch("broken", text)
    result = simple.run(USE)
    assert result.value[:2] == [3, "applied"]
    assert len(result.warnings) == 1
    assert "patch broken cannot be loaded" in result.warnings[0]
    assert words in result.warnings[0]


def test_revert(simple):
    simple.patch("other", 'PATCH = declare(Edit("deepspeed.n:f", replace="x", code="y"))')
    simple.patch("zzz", 'PATCH = declare(Edit("deepspeed.n:f", replace="x", code="y"), affects={"deepspeed": "<1"})')
    simple.module("deepspeed.n", "def f(x):\n    return x\n")
    result = simple.run("""
        import dsfix, deepspeed.m as m, importlib
        for id in ("cure", "cure", "other", "zzz"):
            dsfix.revert(id)
        importlib.reload(m)
        import deepspeed.n
        try:
            dsfix.revert("ohter")
        except dsfix.UnknownPatch as error:
            message = str(error)
        tell([m.f(1), deepspeed.n.f(1), outcomes(), reasons()["cure"], message])
    """)
    assert result.value == [
        2,
        1,
        {"cure": "disabled", "other": "disabled", "zzz": "not-affected"},
        "reverted by dsfix.revert",
        "no patch is called 'ohter'; did you mean other?",
    ]
    assert result.warnings == []


def test_a_replacement_by_another_package_shows_in_the_report(simple):
    result = simple.run("import dsfix, deepspeed.m, json; deepspeed.m.f = json.dumps; tell([outcomes(), reasons()])")
    assert result.value[0] == {"cure": "conflict"}
    assert "another package has since replaced its target" in result.value[1]["cure"]


def _reports(world):
    return [json.loads(file.read_text()) for file in sorted((world.path / "reports").iterdir())]


def test_the_report_file(simple):
    simple.run("import dsfix, deepspeed.m", DSFIX_REPORT="reports", RANK="2")
    (report,) = _reports(simple)
    assert (report["rank"], report["distributions"]["deepspeed"]) == (2, "1.0")
    assert set(report) == {"dsfix", "host", "pid", "rank", "argv", "python", "distributions", "patches"}
    assert report["patches"] == [
        {
            "id": "cure",
            "title": "a stand-in",
            "severity": "crash",
            "outcome": "applied",
            "reason": "Edit of deepspeed.m:f",
            "reached": "",
            "effect": None,
        }
    ]
    simple.run("import dsfix", DSFIX_REPORT="reports")
    assert sorted(report["patches"][0]["outcome"] for report in _reports(simple)) == ["applied", "pending"]


@pytest.mark.parametrize("directory", ["taken", "taken/below"])
def test_a_report_that_cannot_be_written_is_one_warning(simple, directory):
    (simple.path / "taken").write_text("a file")
    result = simple.run(USE, DSFIX_REPORT=directory)
    assert result.value[:2] == [3, "applied"]
    assert len(result.warnings) == 1
    assert f"DSFIX_REPORT: no report can be written to {simple.path / directory}" in result.warnings[0]


def test_a_forked_child_writes_its_own_report(simple):
    result = simple.run(
        """
        import dsfix, os
        child = os.fork()
        if not child:
            import deepspeed.m
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        tell([os.getpid(), child])
        """,
        DSFIX_REPORT="reports",
    )
    reports = {report["pid"]: report["patches"][0]["outcome"] for report in _reports(simple)}
    assert reports == dict(zip(result.value, ["pending", "applied"]))


def test_a_warning_survives_the_configuration_of_logging(simple):
    simple.module("deepspeed.m", "def f(x):\n    return x\n")
    result = simple.run("""
        import dsfix, logging.config
        logging.config.dictConfig({"version": 1, "root": {"handlers": [], "level": "INFO"}})
        import deepspeed.m
        tell(outcomes())
    """)
    assert result.value == {"cure": "drifted"}
    assert len(result.warnings) == 1
    assert len(result.log) == 2


def test_standard_error_may_be_replaced_before_a_message(simple):
    result = simple.run("""
        import contextlib, io
        early = io.StringIO()
        with contextlib.redirect_stderr(early):
            import dsfix
        early.close()
        import deepspeed.m
        tell(deepspeed.m.f(1))
    """)
    assert result.value == 3
    assert len(result.err.splitlines()) == 1


def test_closed_standard_error_stops_nothing(simple):
    result = simple.run("import sys; sys.stderr.close(); import dsfix, deepspeed.m; tell(deepspeed.m.f(1))")
    assert result.value == 3


def test_strict_raises_again_on_a_second_import(simple):
    simple.module("deepspeed.m", "def f(x):\n    return x\n")
    result = simple.run(
        """
        import dsfix
        seen = []
        for _ in range(2):
            try:
                import deepspeed.m
            except dsfix.StrictError as error:
                seen.append(str(error))
        tell(seen)
        """,
        DSFIX_STRICT="1",
    )
    first, second = result.value
    assert first == second
    assert "cure was not applied (drifted)" in first


def test_a_job_that_changes_directory_has_one_report(simple):
    result = simple.run(
        "import dsfix, os; os.mkdir('other'); os.chdir('other'); import deepspeed.m; tell(os.listdir())",
        DSFIX_REPORT="reports",
    )
    assert result.value == []
    (report,) = (simple.path / "reports").iterdir()
    assert json.loads(report.read_text())["patches"][0]["outcome"] == "applied"


def test_dsfix_reloaded_is_the_same_dsfix(simple):
    result = simple.run("""
        import dsfix, deepspeed.m, importlib, sys
        before = len(sys.meta_path)
        importlib.reload(dsfix)
        tell([outcomes(), deepspeed.m.f(1), len(sys.meta_path) - before])
    """)
    assert result.value == [{"cure": "applied"}, 3, 0]
