"""`list --upstream` and `list --deepspeed`."""

import json

import pytest

FLAGSHIP = "zero3_offload_clip_device"  # of pull/5461


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
