"""Patches of other distributions, registered in the entry-point group "dsfix.patches"."""

import pytest

from tests.stand_ins import FLAW

EDIT = 'PATCH = declare(Edit("deepspeed.{}:f", replace="y = x + 1", code="y = x + {}"))'
USE = "import dsfix, deepspeed.m; tell([deepspeed.m.f(1), outcomes()])"


@pytest.fixture
def own(world):
    """dsfix's own patch `cure` makes deepspeed.m.f add 2."""
    world.package(m=FLAW, n=FLAW)
    world.patch("cure", EDIT.format("m", 2))
    return world


def test_every_module_of_the_named_package_is_a_patch(own):
    own.plugin("Acme.Fixes", "acme.patches", one=EDIT.format("n", 3), two=EDIT.format("gone", 3))
    own.module("acme.__init__", "")
    own.module("acme.patches._helper", "raise RuntimeError('nobody asked for it')")
    result = own.run("import dsfix, deepspeed.m, deepspeed.n; tell([deepspeed.n.f(1), outcomes()])")
    assert result.value == [4, {"cure": "applied", "acme-fixes:one": "applied", "acme-fixes:two": "pending"}]
    assert result.warnings == []


def test_patches_in_folders_are_found(own):
    own.plugin("acme", "acme", two=EDIT.format("gone", 3))
    own.module("acme.area.__init__", "")
    own.module("acme.area.one", "from dsfix.patch import *\n" + _declared("n"))
    own.module("acme.area._helper", "raise RuntimeError('nobody asked for it')")
    own.module("acme.other.__init__", "")
    own.module("acme.other.one", "from dsfix.patch import *\n" + _declared("m"))
    result = own.run("import dsfix, deepspeed.n; tell([deepspeed.n.f(1), outcomes()])")
    assert result.value == [3, {"cure": "pending", "acme:one": "applied", "acme:two": "pending"}]
    assert [warning.partition(": ")[2] for warning in result.warnings] == [
        "patch acme:one cannot be loaded and is skipped: acme.area.one has the same id and takes precedence"
    ]


def test_one_module_is_one_patch(own):
    own.plugin("acme", "acme_one")
    own.module("acme_one", "from dsfix.patch import *\n" + _declared("n"))
    (own.site / "acme_one" / "__init__.py").unlink()
    (own.site / "acme_one").rmdir()
    result = own.run("import dsfix, deepspeed.n; tell([deepspeed.n.f(1), outcomes()])")
    assert result.value == [3, {"cure": "pending", "acme:acme_one": "applied"}]


def _declared(module):
    return (
        f'PATCH = Patch(title="t", severity=Severity.CRASH, affects={{"deepspeed": ">=1"}}, symptom="", upstream={{}}, '
        f'fixed_in=None, changes=(Edit("deepspeed.{module}:f", replace="y = x + 1", code="y = x + 2"),))'
    )


def test_ids_with_their_namespace_in_the_environment_variables(own):
    own.plugin("acme", "acme", cure=EDIT.format("n", 3), off=EDIT.format("n", 4).replace("))", "), default=False)"))
    use = "import dsfix, deepspeed.m, deepspeed.n; tell(outcomes())"
    result = own.run(use, DSFIX_SKIP="acme:cure")
    assert result.value == {"cure": "applied", "acme:cure": "disabled", "acme:off": "disabled"}
    assert own.run(use, DSFIX_SKIP="cure").value == {"cure": "disabled", "acme:cure": "applied", "acme:off": "disabled"}
    result = own.run(use, DSFIX_ONLY="acme:off")
    assert result.value == {"cure": "disabled", "acme:cure": "disabled", "acme:off": "applied"}
    result = own.run(use, DSFIX_SKIP="acme:cura")
    assert len(result.warnings) == 1
    assert "no patch is called 'acme:cura'; did you mean acme:cure" in result.warnings[0]
    result = own.run('import dsfix, deepspeed.n; dsfix.revert("acme:cure"); tell([deepspeed.n.f(1), outcomes()])')
    assert result.value == [2, {"cure": "pending", "acme:cure": "disabled", "acme:off": "disabled"}]


def test_two_distributions_may_have_the_same_id(own):
    for number, name in enumerate(("acme", "zeta")):
        own.package(name=f"other{number}", metadata=False, m=FLAW)
        own.plugin(name, name, cure=EDIT.format("m", 3).replace("deepspeed", f"other{number}"))
    result = own.run("import dsfix, deepspeed.m, other0.m, other1.m; tell([other0.m.f(1), other1.m.f(1), outcomes()])")
    assert result.value == [4, 4, dict.fromkeys(("cure", "acme:cure", "zeta:cure"), "applied")]
    assert result.warnings == []


def test_a_conflict_with_a_patch_of_dsfix_leaves_the_plugins_out(own):
    own.plugin("acme", "acme", a=EDIT.format("m", 3))
    result = own.run(USE)
    assert result.value == [3, {"cure": "applied", "acme:a": "conflict"}]
    assert len(result.warnings) == 1
    assert "acme:a was not applied (conflict)" in result.warnings[0]
    assert own.run(USE, DSFIX_SKIP="cure").value == [4, {"cure": "disabled", "acme:a": "applied"}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise OSError('no')", "patch acme:bad cannot be loaded and is skipped: OSError: no"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("import", "SyntaxError"),
        ("x = 1", "it declares no PATCH"),
        ("PATCH = declare()", "a Patch needs at least one change"),
        ("PATCH = declare('x')", "AttributeError"),
        ("PATCH = Patch(title='t', of_a_newer_dsfix=1)", "unexpected keyword argument 'of_a_newer_dsfix'"),
        (EDIT.format("n", 3)[:-1] + ", severity='crash')", "severity='crash', which is not a Severity"),
        (EDIT.format("n", 3)[:-1] + ", affects={'deepspeed': 1})", "affects={'deepspeed': 1}, which is not"),
        (EDIT.format("n", 3)[:-1] + ", affects={'deepspeed': 'new'})", "which is not specifiers by distribution"),
        (EDIT.format("n", 3)[:-1] + ", symptom='(')", "symptom='(', which is not a regular expression"),
        (EDIT.format("n", 3)[:-1] + ", fixed='n:f')", "fixed='n:f', which is not a tuple of Sources"),
        (EDIT.format("n", 3)[:-1] + ", title=None)", "title=None, which is not a string"),
        ("PATCH = declare(Edit('deepspeed.n:f', replace='x', code=2))", "which is not a tuple of changes"),
        ("PATCH = declare(Provide('deepspeed.n', 'g', 3))", "which is not a tuple of changes"),
    ],
)
def test_a_broken_patch_of_a_plugin_is_one_warning_and_nothing_else(own, text, words):
    own.plugin("acme", "acme", bad=text, good=EDIT.format("n", 3))
    result = own.run("import dsfix, deepspeed.m, deepspeed.n; tell([deepspeed.n.f(1), outcomes()])")
    assert result.value == [4, {"cure": "applied", "acme:good": "applied"}]
    assert len(result.warnings) == 1
    assert words in result.warnings[0]


@pytest.mark.parametrize(
    ("value", "init", "words"),
    [
        ("acme", "raise SystemExit", "plug-in acme (acme) cannot be loaded and is skipped: SystemExit"),
        ("acme", "", "plug-in acme (acme) cannot be loaded and is skipped: it holds no patch"),
        ("acme", "import nowhere_to_be_found", "No module named 'nowhere_to_be_found'"),
        (
            "acme:PATCHES",
            "",
            "plug-in acme (acme:PATCHES) cannot be loaded and is skipped: it is not the name of a module",
        ),
        ("not there", "", "it is not the name of a module"),
    ],
)
def test_a_broken_plugin_is_one_warning_and_nothing_else(own, value, init, words):
    own.plugin("acme", value)
    own.module("acme.__init__", init)
    result = own.run(USE)
    assert result.value == [3, {"cure": "applied"}]
    assert len(result.warnings) == 1
    assert words in result.warnings[0]
    strict = own.run(USE, code=1, DSFIX_STRICT="1")
    assert words in strict.err.splitlines()[-1]


def test_metadata_that_cannot_be_read_is_one_warning(own):
    own.plugin("acme", "acme", one=EDIT.format("n", 3))
    (own.site / "acme-1.0.dist-info" / "entry_points.txt").write_bytes(b"[dsfix.patches]\n\xff\xfe = acme\n")
    result = own.run(USE)
    assert result.value[0] == 3
    assert len(result.warnings) == 1
    assert "plug-in acme (entry_points.txt)" in result.warnings[0]


def test_two_patches_of_one_name_in_a_distribution(own):
    own.plugin("acme", "acme.a", same=EDIT.format("n", 3))
    own.module("acme.__init__", "")
    own.module("acme.b.__init__", "")
    own.module("acme.b.same", (own.site / "acme" / "a" / "same.py").read_text().replace("x + 3", "x + 9"))
    (own.site / "acme-1.0.dist-info" / "entry_points.txt").write_text("[dsfix.patches]\n1 = acme.b\n2 = acme.a\n")
    result = own.run("import dsfix, deepspeed.n; tell([deepspeed.n.f(1), outcomes()])")
    assert result.value == [4, {"cure": "pending", "acme:same": "applied"}]
    assert len(result.warnings) == 1
    assert "acme.a.same has the same id and takes precedence" in result.warnings[0]


def test_the_first_installation_on_the_path_counts_once(own, tmp_path):
    own.plugin("acme", "acme", one=EDIT.format("n", 3))
    older = tmp_path / "older"
    (own.site / "acme-1.0.dist-info").rename(own.site / "acme-2.0.dist-info")
    info = older / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dsfix.patches]\npatches = acme_as_it_was\n")
    result = own.run(f"import sys; sys.path.append({str(older)!r})\nimport dsfix, deepspeed.n; tell(outcomes())")
    assert result.value == {"cure": "pending", "acme:one": "applied"}
    assert result.warnings == []


def test_dsfix_imported_again_has_the_plugins(own):
    own.plugin("acme", "acme", one=EDIT.format("n", 3))
    result = own.run("""
        import sys, dsfix, deepspeed.n
        for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
            del sys.modules[name]
        import dsfix
        tell([deepspeed.n.f(1), outcomes()])
    """)
    assert result.value == [4, {"cure": "pending", "acme:one": "applied"}]
    assert result.warnings == []


def test_the_report_names_the_plugin(own, tmp_path):
    own.plugin("acme", "acme", one=EDIT.format("n", 3))
    script = """
        import dsfix, deepspeed.n, glob, os
        [path] = glob.glob(os.environ["DSFIX_REPORT"] + "/*.json")
        report = json.load(open(path))
        tell([report["distributions"]["acme"], [each["id"] for each in report["patches"]]])
    """
    assert own.run(script, DSFIX_REPORT=str(tmp_path / "reports")).value == ["1.0", ["cure", "acme:one"]]
