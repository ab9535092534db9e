"""The commands with a plug-in: another distribution with patches."""

import json

import pytest

PATCH = '''
"""A stand-in.

Why: it is for a test.
"""
from dsfix.patch import Edit, Patch, Severity

PATCH = Patch(
    title="the loss scale is ignored", severity=Severity.WRONG_RESULT, affects={"deepspeed": ">=0.14"},
    changes=(Edit("deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.unscale_and_clip_grads",
                  after="combined_scale = self.loss_scale", code=CODE),),
)
'''
CHANGE = "combined_scale = combined_scale * 1"


@pytest.fixture
def with_plugin(environment):
    def install(code=CHANGE):
        environment.install()
        info = environment.directory / "Acme_Fixes-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Acme.Fixes\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text("[dsfix.patches]\npatches = acme_fixes\n")
        package = environment.directory / "acme_fixes"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "scale.py").write_text(PATCH.replace("CODE", repr(code)))
        return environment

    return install


def dsfix(environment, *arguments):
    return environment.dsfix(*arguments, DSFIX_ONLY="zero3_offload_clip_device,acme-fixes:scale", COLUMNS="160")


def test_find_knows_the_patches_of_plugins(with_plugin):
    assert "  acme-fixes:scale  " in dsfix(with_plugin(), "find", "loss scale is ignored").stdout


def test_list_names_the_distribution_of_a_patch(with_plugin):
    environment = with_plugin()
    assert "  acme-fixes:scale           the loss scale is ignored\n" in dsfix(environment, "list").stdout
    done = dsfix(environment, "list", "--verbose")
    assert done.returncode == 0, done.stderr
    heading, *rows = done.stdout.splitlines()
    assert "acme-fixes 1.2" in heading
    [start] = [number for number, row in enumerate(rows) if row.split()[:2] == ["acme-fixes:scale", "applies"]]
    assert "from acme-fixes 1.2" in "\n".join(rows[start : start + 4])
    assert sum("from acme-fixes" in row for row in rows) == 1  # patches of dsfix itself have no such line
    results = json.loads(dsfix(environment, "list", "--json").stdout)
    assert results["distributions"]["acme-fixes"] == "1.2"
    by_id = {each["id"]: each for each in results["patches"]}
    assert by_id["acme-fixes:scale"]["distribution"] == "acme-fixes"
    assert by_id["zero3_offload_clip_device"]["distribution"] == "dsfix"


def test_show_and_diff(with_plugin):
    environment = with_plugin()
    story = dsfix(environment, "show", "acme-fixes:scale").stdout
    assert "acme-fixes:scale: the loss scale is ignored" in story
    assert "Why: it is for a test." in story
    assert "from:      acme-fixes 1.2" in story
    diff = dsfix(environment, "diff", "acme-fixes:scale").stdout
    assert f"+        {CHANGE}" in diff.splitlines()
    both = dsfix(environment, "diff").stdout
    assert f"+        {CHANGE}" in both
    assert "combined_scale.to(self.device)" in both
    unknown = dsfix(environment, "show", "acme-fixes:scala")
    assert unknown.returncode == 2
    assert "did you mean acme-fixes:scale" in unknown.stderr


def test_a_syntax_error_in_a_change_is_trouble_and_the_commands_still_work(with_plugin):
    environment = with_plugin(code="combined_scale =")
    for command in (["list"], ["show", "acme-fixes:scale"], ["diff"]):
        done = dsfix(environment, *command)
        assert "Traceback" not in done.stderr
    rows = dsfix(environment, "list", "--json")
    assert rows.returncode == 1
    [row] = [each for each in json.loads(rows.stdout)["patches"] if each["id"] == "acme-fixes:scale"]
    assert row["outcome"] == "failed"
    assert "SyntaxError" in row["reason"]
