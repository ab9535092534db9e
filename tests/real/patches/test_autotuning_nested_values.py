"""autotuning_nested_values beyond its reproduction: experiments without the bug start the script as before."""

PATCH_ID = "autotuning_nested_values"


def test_experiments_without_the_bug_start_the_script_as_before(run, applies):
    applies(PATCH_ID)
    [seen], _ = run("autotuned")
    assert [seen] == run("autotuned", DSFIX_SKIP=PATCH_ID)[0]
    assert seen["at the top: appended"] == ["--batch", "4", "--accumulate", "2", "--lr", "0.1"]
    assert seen["none: appended"] == []
