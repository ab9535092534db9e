"""`list`, also with `--upstream` and `--deepspeed`."""

import json
import re
import sys
from collections import Counter

import pytest

from dsfix.catalogue import registry
from dsfix.patch import Severity

FLAGSHIP = "zero3_offload_clip_device"  # of pull/5461


def listed(done):
    return {patch["id"]: patch for patch in json.loads(done.stdout)["patches"]}


def test_the_version_names_the_state_of_the_catalogue(environment):
    about = environment.dsfix("--version").stdout
    count, day = re.fullmatch(
        r"dsfix \S+, (\d+) patches of (\d{4}-\d\d-\d\d), proven through DeepSpeed \d\S+\n", about
    ).groups()
    assert day >= "2026-11-25"
    assert int(count) == len(registry.catalogue())


def test_affected_release(environment):
    done = environment.install("0.14.2").dsfix("list")
    assert done.returncode == 0, done.stderr
    _, counts, rest, _, severity, line, _, advice = done.stdout.splitlines()
    assert counts == f"patches that apply: 1 of {len(registry.catalogue())} (1 crash)"
    assert rest.endswith("disabled: `--verbose` shows the reasons")
    assert severity == "crash"
    assert line == f"  {FLAGSHIP}  {registry.catalogue()[FLAGSHIP].patch.title}"
    assert "import dsfix" in advice


def test_every_patch_is_listed_once_with_a_reason(environment):
    patches = json.loads(environment.install().dsfix("list", "--json").stdout)["patches"]
    assert [patch["id"] for patch in patches] == list(registry.catalogue())
    assert all(patch["reason"] for patch in patches)


def rows(done):
    """(id, outcome) of each row of the table."""
    lines = [line.split()[:2] for line in done.stdout.splitlines() if not line.startswith(" ")]
    return [(line[0], line[1]) for line in lines if line and line[0] in registry.catalogue()]


def groups(done):
    """heading -> ids of the lines below it."""
    results, heading = {}, ""
    for line in done.stdout.splitlines():
        if re.match("  \\S", line):
            results.setdefault(heading, []).append(line.split()[0])
        else:
            heading = line
    return results


def test_in_trouble_first_then_a_line_for_each_patch_by_severity(environment):
    """The stand-in has the source of one patch only."""
    done = environment.install("0.14.2").dsfix("list", DSFIX_ONLY="")
    results = groups(done)
    assert [*results] == ["in trouble", "crash"]
    assert done.stdout.count("  drifted: ") == len(results["in trouble"])
    assert done.stdout.splitlines()[1].endswith(" (1 crash)")
    other = environment.dsfix("list", "--deepspeed", "0.17.6", DSFIX_ONLY="")
    results, catalogue = groups(other), registry.catalogue()
    assert [*results] == [each.value for each in Severity if each.value in results]
    for severity, ids in results.items():
        assert ids == sorted(ids)
        assert {catalogue[each].patch.severity.value for each in ids} == {severity}
    counts = ", ".join(f"{len(ids)} {severity}" for severity, ids in results.items())
    assert f" ({counts})" in " ".join(other.stdout.split())


def test_patches_that_do_not_apply_are_counted_and_listed_with_verbose(environment):
    environment.install("0.14.2")
    short, whole = (environment.dsfix("list", *options) for options in ((), ("--verbose",)))
    assert groups(short) == {"crash": [FLAGSHIP]}
    listed = Counter(outcome for _, outcome in rows(whole))
    assert sum(listed.values()) == len(registry.catalogue())
    assert f"\n{listed['disabled']} disabled: `--verbose` shows the reasons\n" in short.stdout


@pytest.mark.parametrize("options", [(), ("--json",), ("--verbose",)])
def test_selected_severities(environment, options):
    done = environment.dsfix("list", "--deepspeed", "0.14.2", "--severity", "import,hang", *options, DSFIX_ONLY="")
    results = listed(done) if "--json" in options else groups(done)
    wanted = {entry.id for entry in registry.catalogue().values() if entry.patch.severity.value in ("import", "hang")}
    if options:
        assert wanted == {*results} if "--json" in options else wanted == {patch_id for patch_id, _ in rows(done)}
    else:
        assert {*results} == {"import", "hang"}
    refused = environment.dsfix("list", "--severity", "bad")
    assert refused.returncode == 2
    assert "'bad' is not one of wrong-result, crash" in refused.stderr


def test_without_deepspeed(environment):
    done = environment.dsfix("list")
    assert done.returncode == 3
    assert "DeepSpeed is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_half_installed(environment):
    environment.register("0.14.2")
    done = environment.dsfix("list")
    assert done.returncode == 3
    assert "reinstall" in done.stderr


def test_a_missing_module_is_trouble(environment):
    environment.install().stage3.unlink()
    done = environment.dsfix("list", "--json")
    assert done.returncode == 1
    assert listed(done)[FLAGSHIP]["outcome"] == "drifted"
    assert "reinstall it" in listed(done)[FLAGSHIP]["reason"]


def test_a_reader_that_stops_reading_is_not_an_error(environment):
    process = environment.install().start("list")
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr.read() == ""


def test_a_real_process_leaves_a_report_that_list_reads(environment, tmp_path):
    environment.install()
    for package in environment.directory.rglob("__init__.py"):
        package.write_text("")
    job = environment.start(code="import dsfix, deepspeed.runtime.zero.stage3", DSFIX_REPORT=str(tmp_path / "reports"))
    assert job.wait() == 0
    done = environment.dsfix("list", "--job", tmp_path / "reports", "--json")
    results = {patch["id"]: patch["outcome"] for patch in json.loads(done.stdout)["patches"]}
    assert results[FLAGSHIP] == "applied"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_utf8(environment, encoding):
    done = environment.install().dsfix("list", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert FLAGSHIP in done.stdout


def test_lines_are_cut_only_at_the_edge_of_a_terminal(environment):
    environment.install("0.14.2")
    title = registry.catalogue()[FLAGSHIP].patch.title
    assert title in environment.dsfix("list").stdout
    cut = environment.dsfix("list", COLUMNS="80").stdout
    assert title not in cut
    assert max(map(len, cut.splitlines())) == 80
    assert "...\n" in environment.dsfix("list", COLUMNS="80", PYTHONIOENCODING="ascii").stdout


@pytest.mark.parametrize("redirected", [">&-", ">/dev/full"])
@pytest.mark.parametrize("command", ["list", "list --json", "diff"])
def test_standard_output_that_cannot_be_written(environment, command, redirected):
    done = environment.install().shell(f"{sys.executable} -m dsfix {command} {redirected}")
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    assert done.returncode == (0 if redirected == ">&-" else 2)


@pytest.mark.parametrize("options", ["-m dsfix", "-um dsfix", "-mdsfix", "-X dev -W error -m dsfix"])
def test_the_command_is_not_a_process_of_the_job(environment, tmp_path, options):
    variables = {"DSFIX_REPORT": str(tmp_path / "reports"), "DSFIX_STRICT": "1", "DSFIX_SKIP": "zero3_offload_clip"}
    done = environment.install().shell(f"{sys.executable} {options} list", **variables)
    assert done.returncode == 0
    assert done.stderr.startswith(
        f"dsfix: DSFIX_SKIP: no patch is called 'zero3_offload_clip'; did you mean {FLAGSHIP}"
    )
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "reports").exists()


def test_a_job_that_is_started_as_a_module_is_a_job(environment, tmp_path):
    train = environment.install().directory / "train"
    train.mkdir()
    (train / "__init__.py").write_text("import dsfix\n")
    (train / "__main__.py").write_text("")
    done = environment.shell(f"{sys.executable} -um train -m dsfix", DSFIX_REPORT=str(tmp_path / "reports"))
    assert done.returncode == 0
    assert len(list((tmp_path / "reports").iterdir())) == 1


def told(done):
    return " ".join(done.stdout.split())


def test_the_installed_release(environment):
    done = environment.install("0.14.2").dsfix("list", "--upstream")
    assert done.returncode == 0, done.stderr
    assert "deepspeed 0.14.2" in done.stdout
    assert " known bugs: " in done.stdout
    assert "\nwrong-result\n" in done.stdout
    assert FLAGSHIP not in done.stdout
    whole = environment.dsfix("list", "--upstream", "--verbose")
    assert f"patch {FLAGSHIP}" in told(whole)
    assert "left out" not in whole.stdout


def test_as_json(environment):
    done = environment.install("0.14.2").dsfix("list", "--upstream", "--json")
    results = json.loads(done.stdout)
    bugs = results["upstream"]["bugs"]
    assert results["deepspeed"] == "0.14.2"
    assert results["distributions"]["deepspeed"] == "0.14.2"
    assert sum(results["upstream"]["counts"].values()) == len(bugs)
    [one] = [bug for bug in bugs if bug["key"] == "pull/5461"]
    assert (one["state"], one["first"], one["last"]) == ("patched", "0.14.1", "0.14.2")
    assert f"patch {FLAGSHIP}" in one["by"]
    assert one["links"][0] == "https://github.com/deepspeedai/DeepSpeed/pull/5461"


def test_the_counts_are_those_of_the_rows_and_the_same_for_a_release_that_is_not_installed(environment):
    here = json.loads(environment.install("0.15.4").dsfix("list", "--upstream", "--json").stdout)
    there = json.loads(environment.dsfix("list", "--deepspeed", "0.15.4", "--upstream", "--json").stdout)
    assert here["upstream"] == there["upstream"]
    text = told(environment.dsfix("list", "--deepspeed", "0.15.4", "--upstream"))
    assert f"{here['upstream']['counts']['patched']} patched" in text
    assert f"{here['upstream']['counts']['open']} open" in text


@pytest.mark.parametrize("version", ["0.18.9+0a1b", "0.99.0"])
def test_a_version_that_is_not_in_the_table_is_judged_by_version_number_and_says_so(environment, version):
    done = environment.install(version).dsfix("list", "--upstream")
    assert done.returncode == 0, done.stderr
    assert ("not a release" if "+" in version else "newer than") in done.stdout


@pytest.mark.parametrize("version", ["0.9.5", "unknown"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_installed_version_that_the_table_does_not_cover(environment, version, options):
    done = environment.install(version).dsfix("list", "--upstream", *options)
    assert done.returncode == 4
    sentence = json.loads(done.stdout)["error"] if options else done.stderr
    assert "0.12.0" in sentence or "not a version" in sentence
    assert "Traceback" not in done.stderr


def test_a_release_that_is_not_installed(environment):
    done = environment.dsfix("list", "--deepspeed", "0.14.2", DSFIX_ONLY="")
    assert done.returncode == 0, done.stderr
    assert f"  {FLAGSHIP} " in done.stdout
    verbose = environment.dsfix("list", "--deepspeed", "0.14.2", "--verbose", DSFIX_ONLY="")
    assert "affects deepspeed <0.14.4, numpy >=2.0.0.dev0" in told(verbose).replace(">=0.12.0,", "")
    outside = environment.dsfix("list", "--deepspeed", "0.14.4", DSFIX_ONLY="")
    assert FLAGSHIP not in outside.stdout


def test_a_release_that_is_not_installed_as_json(environment):
    results = json.loads(environment.dsfix("list", "--deepspeed", "0.14.2", "--json", DSFIX_ONLY="").stdout)
    patches = {each["id"]: each for each in results["patches"]}
    assert (patches[FLAGSHIP]["outcome"], patches[FLAGSHIP]["reason"]) == ("pending", "deepspeed 0.14.2")
    assert patches["dict_output_double_scaling"]["outcome"] == "not-affected"


@pytest.mark.parametrize("version", ["0.11.2", "0.12.99", "99.0", "new"])
@pytest.mark.parametrize("options", [(), ("--upstream",), ("--json",)])
def test_an_unknown_release(environment, version, options):
    done = environment.dsfix("list", "--deepspeed", version, *options)
    assert done.returncode == 2
    sentence = json.loads(done.stdout)["error"] if options == ("--json",) else done.stderr.removeprefix("dsfix: ")
    assert sentence.strip().count("\n") == 0
    assert version in sentence


def test_a_job_has_its_own_release(environment, tmp_path):
    done = environment.dsfix("list", "--job", tmp_path, "--deepspeed", "0.14.2")
    assert done.returncode == 2
    assert "--job cannot be combined with" in done.stderr
