"""`explain` from the command line: the founding cases, the environment, and input that is not a log."""

import gzip
import json
import os
import sys
from pathlib import Path

import pytest

CLIP = """\
Traceback (most recent call last):
  File "/home/user/train.py", line 89, in main
    engine.step()
  File "/site-packages/deepspeed/runtime/zero/stage3.py", line 2117, in unscale_and_clip_grads
    self.fp32_partitioned_groups_flat[sub_group_id].grad.mul_(1. / combined_scale)
RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!
"""
INFO = "[2024-05-01 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version={}, "
"git-hash=unknown\n"
EMBEDDING = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/site-packages/torch/nn/functional.py", line 2237, in embedding
[rank0]:     return torch.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)
[rank0]: RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and \
cuda:7! (when checking argument for argument index in method wrapper_CUDA__index_select)
"""
TALKER = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/site-packages/transformers/models/qwen2_5_omni/modeling_qwen2_5_omni.py", line 2310, in forward
[rank0]:     inputs_embeds = self.thinker_to_talker_proj(inputs_embeds)
[rank0]: RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!
"""
RECOMPUTED = """\
[rank0]: torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors \
have different metadata than during the forward pass.
[rank0]: tensor at position 16:
[rank0]: saved metadata: {'shape': torch.Size([3584]), 'dtype': torch.bfloat16, 'device': device(type='cuda')}
[rank0]: recomputed metadata: {'shape': torch.Size([0]), 'dtype': torch.bfloat16, 'device': device(type='cuda')}
"""
FOUNDING = {
    "the clip": (CLIP, "zero3_offload_clip_device", "put `import dsfix` on the first line of the script"),
    "device_map": (EMBEDDING, "device_map_several_devices", "Load the model without device_map"),
    "0.14.2": (INFO.format("0.14.2") + CLIP, "zero3_offload_clip_device", "DeepSpeed 0.14.3 or later."),
    "the talker": (TALKER, "talker_left_on_cpu", "ENABLE_AUDIO_OUTPUT=0"),
    "recomputed [0]": (RECOMPUTED, "zero3_checkpoint_recompute", "dsfix zero3_checkpoint_recompute "),
}


def one_line(done):
    """Returns the output on one line, independent of the terminal's width."""
    return " ".join(done.stdout.split())


@pytest.fixture
def log(tmp_path):
    def write(text, name="train.log"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("case", FOUNDING)
def test_from_the_message_to_the_remedy(environment, log, case):
    text, problem, remedy = FOUNDING[case]
    done = environment.install("0.14.2").dsfix("explain", log(f"step 1\n{text}step 2\n"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"Most likely cause {problem}: " in one_line(done)
    assert remedy in one_line(done)


def test_the_environment_has_the_patch(environment, log):
    done = environment.install("0.14.2").dsfix("explain", log(CLIP), "--json")
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["patches"] == [
        {
            "id": "zero3_offload_clip_device",
            "outcome": "pending",
            "reason": finding["patches"][0]["reason"],
            "for_the_versions_in_the_log": None,
        }
    ]
    assert finding["affects"] == [{"deepspeed": ">=0.14.1,<0.14.3"}]
    assert finding["first"] == {"file": finding["first"]["file"], "line": 6, "text": CLIP.splitlines()[-1]}


@pytest.mark.parametrize(
    ("version", "affected"), [("0.14.2", True), ("0.14.2+cu121", True), ("0.14.4", False), ("x", False)]
)
def test_without_deepspeed_the_versions_in_the_log_decide(environment, log, version, affected):
    done = environment.dsfix("explain", log(INFO.format(version) + CLIP), "--json")
    (patch,) = json.loads(done.stdout)["findings"][0]["patches"]
    assert patch["for_the_versions_in_the_log"] is affected
    assert patch["outcome"] == "not-affected"
    said = one_line(environment.dsfix("explain", log(INFO.format(version) + CLIP)))
    assert "not checked here, because DeepSpeed is not installed" in said
    assert ("has the bug; in that environment, put" in said) is affected


def test_a_different_release_here_than_in_the_log(environment, log):
    done = environment.install("0.14.4").dsfix("explain", log(INFO.format("0.14.2") + CLIP))
    assert "is not-affected here: deepspeed 0.14.4 is outside" in one_line(done)
    assert "deepspeed 0.14.2 in the log has the bug; in that environment, put" in one_line(done)


def test_a_patch_disabled_by_the_user(environment, log):
    done = environment.install().dsfix("explain", log(CLIP), DSFIX_SKIP="zero3_offload_clip_device")
    assert "is disabled here: named in DSFIX_SKIP" in one_line(done)


def test_nothing_is_recognised(environment, log):
    done = environment.dsfix("explain", log("step 1\nstep 2\n"))
    assert done.returncode == 4
    assert "(2 lines). Pass the error message with its traceback, or the whole log." in one_line(done)


def test_an_unknown_error_is_shown(environment, log):
    done = environment.dsfix("explain", log(CLIP.replace("Expected all tensors", "Something")))
    assert done.returncode == 4
    assert "unknown error" in one_line(done)
    assert "RuntimeError: Something to be on the same device" in one_line(done)


@pytest.mark.parametrize(
    "command",
    ["cat {} | {} explain", "{1} explain - < {0}", "{1} explain <(cat {0})", "cat {} | {} explain /dev/stdin"],
)
def test_pipes(environment, log, command):
    done = environment.shell(f"bash -c '{command.format(log(CLIP), f'{sys.executable} -m dsfix')}'")
    assert done.returncode == 0, done.stderr
    assert "zero3_offload_clip_device" in done.stdout


def test_standard_input_that_is_closed(environment):
    done = environment.shell(f"{sys.executable} -m dsfix explain <&-")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard input cannot be read: it is closed" in done.stderr


def test_input_that_is_not_a_log(environment, log, tmp_path):
    (tmp_path / "directory").mkdir()
    packed = gzip.compress(CLIP.encode() * 2000)
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) // 2])
    cases = {
        tmp_path / "absent": "cannot be read: No such file or directory",
        tmp_path / "directory": "cannot be read: Is a directory",
        tmp_path / ("n" * 300): "cannot be read: File name too long",
        tmp_path / "cut.gz": ": its compressed data is damaged or truncated",
    }
    for path, complaint in cases.items():
        done = environment.dsfix("explain", path)
        assert done.returncode == 2, path
        assert complaint in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(environment, log):
    path = log(CLIP)
    path.chmod(0)
    done = environment.dsfix("explain", path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be read: Permission denied" in done.stderr


def test_an_empty_file(environment, log):
    done = environment.dsfix("explain", log(""))
    assert done.returncode == 4
    assert "train.log is empty" in done.stderr


def test_of_several_files_the_readable_ones_are_read(environment, log, tmp_path):
    done = environment.dsfix("explain", tmp_path / "absent", log(CLIP), log("step 1\n", "other.log"))
    assert done.returncode == 2
    assert "absent cannot be read" in done.stderr
    assert "zero3_offload_clip_device" in done.stdout
    assert "first in" in done.stdout


def test_a_file_that_disappears_while_it_is_read(environment, log):
    """On a network file system reading ends with an error: the part read before is used."""
    code = (
        "import errno, io, sys\n"
        "from dsfix.explain import stream\n"
        "class Gone(io.RawIOBase):\n"
        "    parts = [open(sys.argv[2], 'rb').read()]\n"
        "    def readable(self): return True\n"
        "    def readinto(self, buffer):\n"
        "        if not self.parts: raise OSError(errno.ESTALE, 'Stale file handle')\n"
        "        data = self.parts.pop(); buffer[:len(data)] = data; return len(data)\n"
        "stream.open = lambda *_: io.BufferedReader(Gone())\n"
        "from dsfix.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    path = log(CLIP * 20)
    program = Path(environment.directory, "program.py")
    program.write_text(code)
    done = environment.shell(f"{sys.executable} {program} explain {path}")
    assert done.returncode == 2
    assert "Stale file handle" in done.stderr
    assert "zero3_offload_clip_device" in done.stdout


def test_control_characters_are_not_printed(environment, log):
    done = environment.dsfix("explain", log(CLIP.replace("cpu!", "cpu!\x07\x9b31m\u202e")))
    assert not set("\x07\x9b\u202e") & set(done.stdout)


RENAMED = (
    "Traceback (most recent call last):\n"
    "AttributeError: 'DeepSpeedZeRoOffload' object has no attribute '_register_hooks_recursively'\n"
)


@pytest.mark.parametrize(
    ("version", "role", "status"), [("0.16.4", "cause", 0), ("0.10.0", "excluded", 4), (None, "cause", 0)]
)
def test_a_bug_that_the_log_s_release_does_not_have_is_not_the_cause(environment, log, version, role, status):
    named = f"DeepSpeed info: version={version}, git-hash=unknown\n" if version else ""
    place = environment.install("0.14.2")
    done = place.dsfix("explain", log(named + RENAMED), "--json")
    assert [each["role"] for each in json.loads(done.stdout)["findings"]] == [role]
    assert done.returncode == status
    shown = one_line(place.dsfix("explain", log(named + RENAMED)))
    assert ("only if deepspeed >=0.16.4" in shown) == (version is None)
    assert ("the release in the log does not have this bug" in shown) == (role == "excluded")


def test_the_earliest_examined_release_is_not_shown_as_a_bound(environment, log):
    scale = "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
    shown = one_line(environment.install("0.14.2").dsfix("explain", log(scale)))
    assert "loss_scale_at_minimum" in shown
    assert "0.12.0" not in shown
    assert "only if" not in shown


def test_a_later_error_comes_before_an_excluded_one(environment, log):
    text = f"DeepSpeed info: version=0.14.2, git-hash=unknown\n{RENAMED}step 1\n{CLIP}"
    done = environment.install("0.14.2").dsfix("explain", log(text), "--json")
    results = [(each["id"], each["role"]) for each in json.loads(done.stdout)["findings"]]
    assert results == [("zero3_offload_clip_device", "cause"), ("hook_registration_renamed", "excluded")]


def test_a_message_with_several_causes_is_not_called_the_cause(environment, log):
    done = environment.dsfix("explain", log("ZeroDivisionError: float division by zero\n"))
    assert done.returncode == 0
    assert "This message has several possible causes division_by_zero: " in one_line(done)
    assert "Most likely cause" not in done.stdout


def test_a_patch_that_only_removes_a_message_is_not_offered_as_a_fix(environment, log):
    masked = "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    shown = one_line(environment.install("0.14.2").dsfix("explain", log(masked)))
    assert "Consequence of an unrecognised error optimizer_del_masks_error" in shown
    assert "(this removes the message, not its cause)" in shown
    assert "the parameter list was empty" in shown
    assert "(it removes" not in one_line(environment.dsfix("explain", log(CLIP)))
