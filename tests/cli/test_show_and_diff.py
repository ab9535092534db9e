import json
import subprocess

import pytest

FLAGSHIP = "zero3_offload_clip_device"


def test_show_prints_the_story(environment):
    done = environment.install("0.14.2").dsfix("show", FLAGSHIP)
    assert done.returncode == 0, done.stderr
    for part in ("Why:", "How:", "deepspeed >=0.14.1,<0.14.3", "unscale_and_clip_grads", "here:      applies: "):
        assert part in done.stdout


def test_show_has_upstream_links_and_when_the_patch_can_go(environment):
    lines = environment.install().dsfix("show", FLAGSHIP).stdout.splitlines()
    assert "retire:    once releases before 0.14.3 are no longer supported" in lines
    links = [line.split()[-1] for line in lines[lines.index("") :] if line.startswith(("upstream:", " " * 11))]
    assert all("https://github.com/" in link or link.endswith(")") for link in links)
    assert any(line.startswith("upstream:  https://github.com/deepspeedai/DeepSpeed/") for line in lines)


def test_show_works_without_deepspeed(environment):
    done = environment.dsfix("show", FLAGSHIP, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["outcome"] == "not-affected"


@pytest.mark.parametrize("command", ["show", "diff"])
def test_an_unknown_id_suggests_the_nearest(environment, command):
    done = environment.install().dsfix(command, "zero3_offload_clip")
    assert done.returncode == 2
    assert done.stderr.startswith(f"dsfix: no patch is called 'zero3_offload_clip'; did you mean {FLAGSHIP}")
    assert done.stderr.count("\n") == 1


def test_an_id_without_a_near_match_points_to_the_list(environment):
    done = environment.dsfix("show", "qqq")
    assert done.returncode == 2
    assert "python -m dsfix list" in done.stderr


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


def test_a_repeated_id_is_used_once(environment):
    environment.install()
    assert environment.dsfix("diff", FLAGSHIP, FLAGSHIP).stdout == environment.dsfix("diff", FLAGSHIP).stdout


def test_the_diff_as_json(environment):
    found = json.loads(environment.install("0.14.2").dsfix("diff", "--json").stdout)
    assert "+" + " " * 16 + "if torch.is_tensor(combined_scale):\n" in found["diff"]
    assert found["notes"] == []


def test_a_patch_in_trouble_is_reported(environment):
    install = environment.install()
    install.stage3.write_text(install.stage3.read_text().replace("clip * self.loss_scale", "clip * scale"))
    done = environment.dsfix("diff")
    assert done.returncode == 1
    assert done.stdout.startswith(f"# {FLAGSHIP} does not apply here: drifted")


def test_no_deepspeed_no_diff(environment):
    done = environment.dsfix("diff")
    assert done.returncode == 3
    assert "DeepSpeed is not installed" in done.stderr


def test_bad_usage(environment):
    for arguments in ((), ("frobnicate",), ("show",), ("list", "--bogus")):
        done = environment.dsfix(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_the_exit_statuses_are_documented(environment):
    assert "exit status: 0 done; 1 a patch is in trouble" in " ".join(environment.dsfix("--help").stdout.split())
