"""`show` and `diff`, and the diff of each kind of edit."""

import json
import subprocess

import pytest

from dsfix.cli.printing.edits import Unwritable, unified_diff
from dsfix.patch import Edit

FLAGSHIP = "zero3_offload_clip_device"


def test_show_describes_the_bug(environment):
    done = environment.install("0.14.2").dsfix("show", FLAGSHIP)
    assert done.returncode == 0, done.stderr
    for part in ("Why:", "How:", "deepspeed >=0.14.1,<0.14.3", "unscale_and_clip_grads", "here:      applies: "):
        assert part in done.stdout


def test_show_has_upstream_links_and_when_the_patch_can_be_deleted(environment):
    lines = environment.install().dsfix("show", FLAGSHIP, COLUMNS="160").stdout.splitlines()
    assert "retire:    once releases before 0.14.3 are no longer supported" in lines
    links = [line.split()[-1] for line in lines[lines.index("") :] if line.startswith(("upstream:", " " * 11))]
    assert all("https://github.com/" in link or link.endswith(")") for link in links)
    assert any(line.startswith("upstream:  https://github.com/deepspeedai/DeepSpeed/") for line in lines)


def test_show_works_without_deepspeed(environment):
    done = environment.dsfix("show", FLAGSHIP, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["patches"][0]["outcome"] == "not-affected"


@pytest.mark.parametrize("command", ["show", "diff"])
def test_an_unknown_id_suggests_the_nearest(environment, command):
    done = environment.install().dsfix(command, "zero3_offload_clip")
    assert done.returncode == 2
    assert done.stderr.startswith(f"dsfix: no patch is called 'zero3_offload_clip'; did you mean {FLAGSHIP}")
    assert done.stderr.count("\n") == 1


def test_an_id_without_a_near_match_points_to_find(environment):
    done = environment.dsfix("show", "qqq")
    assert done.returncode == 2
    assert "python -m dsfix find" in done.stderr


@pytest.mark.parametrize("command", ["show", "diff"])
@pytest.mark.parametrize(
    "name", [FLAGSHIP.upper(), "5461", "#5461", "https://github.com/microsoft/DeepSpeed/pull/5461/files"]
)
def test_ways_to_name_a_patch(environment, command, name):
    """5461 is the pull request that fixed it; an issue's URL differs in one word."""
    done = environment.install("0.14.2").dsfix(command, name, "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    if command == "diff":
        assert "combined_scale.to(self.device)" in results["diff"]
    else:
        assert [each["id"] for each in results["patches"]] == [FLAGSHIP]


def test_show_explains_a_bug_without_a_patch(environment):
    done = environment.dsfix("show", "#4932")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#4932: zero.Init")
    assert "dsfix:     cannot be changed safely: " in done.stdout
    assert "upstream:  https://github.com/deepspeedai/DeepSpeed/" in done.stdout


@pytest.mark.parametrize("command", [("show", FLAGSHIP), ("list",), ("find", "gradient", "norm")])
@pytest.mark.parametrize("columns", ["80", "160"])
def test_lines_are_as_wide_as_the_terminal(environment, command, columns):
    lines = environment.install().dsfix(*command, COLUMNS=columns, DSFIX_ONLY="").stdout.splitlines()
    longest = max(len(line) for line in lines if "/" not in line and "::" not in line and ":Deep" not in line)
    assert 0.9 * int(columns) < longest <= int(columns)


def test_the_diff_is_the_edit(environment):
    done = environment.install("0.14.2").dsfix("diff", FLAGSHIP)
    assert done.returncode == 0
    added = [line for line in done.stdout.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        "+" + " " * 16 + "if torch.is_tensor(combined_scale):",
        "+" + " " * 20 + "combined_scale = combined_scale.to(self.device)",
    ]
    assert not [line for line in done.stdout.splitlines() if line.startswith("-") and not line.startswith("---")]


def test_the_diff_applies_and_is_then_already_fixed(environment):
    diff = environment.install("0.14.2").dsfix("diff").stdout
    subprocess.run(["git", "apply", "-p1"], cwd=environment.directory, input=diff, text=True, check=True)
    listed = json.loads(environment.dsfix("list", "--json").stdout)["patches"]
    assert {patch["id"]: patch["outcome"] for patch in listed}[FLAGSHIP] == "already-fixed"
    assert environment.dsfix("diff").stdout == "# no patch applies here\n"


def test_the_diff_says_why_a_patch_is_missing(environment):
    done = environment.install("0.14.4").dsfix("diff", FLAGSHIP)
    assert done.returncode == 0
    assert done.stdout.startswith(f"# {FLAGSHIP} does not apply here: not-affected")


def test_a_patch_in_trouble_is_reported(environment):
    install = environment.install()
    install.stage3.write_text(install.stage3.read_text().replace("clip * self.loss_scale", "clip * scale"))
    done = environment.dsfix("diff")
    assert done.returncode == 1
    assert done.stdout.startswith(f"# {FLAGSHIP} does not apply here: drifted")


def test_bad_usage(environment):
    for arguments in (("frobnicate",), ("show",), ("list", "--bogus")):
        done = environment.dsfix(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_without_a_command_all_are_shown(environment):
    done = environment.dsfix()
    assert done.returncode == 0
    assert done.stdout == environment.dsfix("--help").stdout
    assert "    find " in done.stdout


@pytest.mark.parametrize(
    ("command", "hint"), [("explian", "did you mean explain?"), ("qqq", "`python -m dsfix` lists all commands")]
)
def test_an_unknown_command_is_answered_with_the_nearest(environment, command, hint):
    done = environment.dsfix(command, "train.log")
    assert done.returncode == 2
    assert done.stderr == f"dsfix: unknown command {command!r}; {hint}\n"


def test_the_exit_statuses_are_documented(environment):
    assert "exit status: 0 done 1 a patch is in trouble" in " ".join(environment.dsfix("--help").stdout.split())


SOURCE = """\
def f(x, y):
    if x: y = 1
    z = abs(x) + abs(x)
    return (
        z,
        "é", abs(y),
    )
"""


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """The lines that an edit removes and adds."""
    (tmp_path / "diffed_module.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def lines(*edits):
        diff = unified_diff([Edit("diffed_module:f", **edit) for edit in edits])
        assert diff.startswith("--- a/diffed_module.py\n+++ b/diffed_module.py\n")
        return [line for line in diff.splitlines()[2:] if line[0] in "+-"]

    return lines


LINE = "z = abs(x) + abs(x)"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"after": LINE, "code": "if z:\n    z += 1"}, ["+    if z:", "+        z += 1"]),
        ({"before": LINE, "code": "x = -x"}, ["+    x = -x"]),
        ({"replace": LINE, "code": "z = 0"}, [f"-    {LINE}", "+    z = 0"]),
        (
            {"replace": "abs(x)", "code": "float(abs(x))", "count": 2},
            [f"-    {LINE}", "+    z = float(abs(x)) + float(abs(x))"],
        ),
        ({"replace": "abs(y)", "code": "y"}, ['-        "é", abs(y),', '+        "é", y,']),  # columns count bytes
    ],
)
def test_the_lines_of_an_edit(changed, edit, expected):
    assert changed(edit) == expected


def test_several_edits(changed):
    edits = ({"before": LINE, "code": "x = -x"}, {"after": LINE, "code": "z += 1"})
    assert changed(*edits) == changed(*reversed(edits)) == ["+    x = -x", "+    z += 1"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_edits_at_one_place_keep_their_order(changed, where):
    edits = [{where: LINE, "code": code} for code in ("x += 1", "x *= 2")]
    assert changed(*edits) == ["+    x += 1", "+    x *= 2"]


def test_an_anchor_that_shares_its_line_is_refused(changed):
    with pytest.raises(Unwritable, match="holds more than the anchor"):
        changed({"after": "y = 1", "code": "y += 1"})


def test_the_file_of_a_package_is_its_init_file(tmp_path, monkeypatch):
    (tmp_path / "diffed_package" / "inner").mkdir(parents=True)
    (tmp_path / "diffed_package" / "__init__.py").touch()
    (tmp_path / "diffed_package" / "inner" / "__init__.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    diff = unified_diff([Edit("diffed_package.inner:f", replace="return 1", code="return 2")])
    assert diff.startswith("--- a/diffed_package/inner/__init__.py\n+++ b/diffed_package/inner/__init__.py\n")
