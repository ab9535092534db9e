"""Installations that are no release: hand edits, forks, odd version numbers, half installed ones.

Each is a copy of the installed release, 0.14.2, that has been changed; the patch is the founding one.
"""

from __future__ import annotations

import py_compile
import shutil
from pathlib import Path
from typing import Any, Callable

import pytest
from packaging.version import Version

PATCH = "zero3_offload_clip_device"
ANCHOR = "                combined_scale = clip * self.loss_scale\n"
MOVE = "combined_scale = combined_scale.to(self.device)\n"
SCALING = "        self.fp32_partitioned_groups_flat[sub_group_id].grad.mul_(1. / combined_scale)\n"
NORM = "torch.norm(torch.stack(norm_groups))"
FIXED_NORM = "get_global_norm(norm_list=norm_groups)"  # 0.14.3
STAGE3 = Path("deepspeed/runtime/zero/stage3.py")
AS_FIXED = (NORM, FIXED_NORM)

Change = tuple[str, str]


@pytest.fixture(autouse=True)
def _only_with_the_affected_release(release: Version) -> None:
    if release != Version("0.14.2"):
        pytest.skip("the forks are made from 0.14.2")


@pytest.fixture
def fork(original: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a changed copy: replacements in stage3.py, the version that the metadata gives (None: no metadata)."""

    def make(*changes: Change, version: str | None = "0.14.2") -> Path:
        root = tmp_path / "fork"
        shutil.copytree(original, root)
        text = (root / STAGE3).read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) >= 1
            text = text.replace(old, new)
        (root / STAGE3).write_text(text, encoding="utf-8")
        (described,) = root.glob("*.dist-info")
        if version is None:
            shutil.rmtree(described)
        else:
            data = (described / "METADATA").read_text(encoding="utf-8")
            (described / "METADATA").write_text(
                data.replace("Version: 0.14.2", f"Version: {version}"), encoding="utf-8"
            )
        return root

    return make


@pytest.mark.parametrize(
    "version",
    [
        "0.14.2",
        "0.14.2.post1",
        "0.14.3.dev1+g123",
        "0.14.2+unknown",
        "0.14.2+cu121",
        "0.14.3+abc1234",
        "unknown",
        "",
        None,
    ],
)
def test_whatever_its_number_a_build_with_the_bug_is_patched(fork: Any, judged: Any, version: str | None) -> None:
    verdicts = judged(fork(version=version))
    assert verdicts[PATCH][0] == "pending", verdicts[PATCH]
    assert all(outcome == "pending" for name, (outcome, _) in verdicts.items() if name in _OF_0_14_2), verdicts


_OF_0_14_2 = (PATCH, "numpy_bufsize", "torch_elastic_get_socket_with_port")


@pytest.mark.parametrize(
    "version", ["0.14.2", "0.14.2+unknown", "0.14.3+abc1234", "0.14.3.dev1+g123", "unknown", "", None]
)
def test_whatever_its_number_a_build_with_the_fix_is_left_alone(fork: Any, judged: Any, version: str | None) -> None:
    outcome, reason = judged(fork(AS_FIXED, version=version))[PATCH]
    assert outcome == "already-fixed"
    assert "get_global_norm" in reason


@pytest.mark.parametrize("version", ["0.14.3", "0.19.8", "0.14.0"])
def test_the_number_of_another_release_settles_it(fork: Any, judged: Any, version: str) -> None:
    assert judged(fork(version=version))[PATCH][0] == "not-affected"


GUARDED = "        if torch.is_tensor(combined_scale):\n"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param((ANCHOR, ANCHOR + " " * 16 + MOVE), id="after the anchor"),
        pytest.param((SCALING, " " * 8 + MOVE + SCALING), id="before it is used"),
        pytest.param((SCALING, GUARDED + " " * 12 + MOVE + SCALING), id="before it is used, guarded"),
        pytest.param(
            (ANCHOR, ANCHOR + " " * 12 + "if clip > 1 and torch.is_tensor(combined_scale):\n" + " " * 16 + MOVE),
            id="in an if of its own",
        ),
        pytest.param((SCALING, SCALING.replace("combined_scale)", "combined_scale.item())")), id="as a number"),
    ],
)
def test_a_hand_edit_is_left_alone(fork: Any, judged: Any, change: Change) -> None:
    assert judged(fork(change))[PATCH][0] == "already-fixed"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("def unscale_and_clip_grads(", "def unscale_and_clip_gradients("), id="renamed"),
        pytest.param((ANCHOR, ANCHOR.replace("clip *", "clip.item() *")), id="another statement"),
        pytest.param((ANCHOR, ANCHOR * 2), id="twice"),
        pytest.param((NORM, "self.norm_of(norm_groups)"), id="another norm"),
        pytest.param((SCALING, "    def unscale_and_clip_grads(:\n"), id="a syntax error"),
    ],
)
def test_a_rewritten_function_is_not_touched(fork: Any, judged: Any, change: Change) -> None:
    outcome, reason = judged(fork(change))[PATCH]
    assert outcome == "drifted"
    assert reason


def test_a_rewritten_function_of_a_build_without_a_number_is_not_touched(fork: Any, judged: Any) -> None:
    change = (ANCHOR, ANCHOR.replace("clip *", "clip.item() *"))
    outcome, reason = judged(fork(change, version="unknown"))[PATCH]
    assert outcome in ("not-affected", "drifted")
    assert "combined_scale" in reason


def test_bytecode_without_source_is_not_touched(fork: Any, judged: Any) -> None:
    root = fork()
    py_compile.compile(str(root / STAGE3), cfile=str(root / STAGE3.with_suffix(".pyc")))
    (root / STAGE3).unlink()
    outcome, reason = judged(root)[PATCH]
    assert outcome == "drifted"
    assert "no readable source" in reason


def _without_stage3(root: Path) -> None:
    (root / STAGE3).unlink()


def _only_its_directory(root: Path) -> None:
    shutil.rmtree(root / "deepspeed")
    (root / "deepspeed").mkdir()


def _only_its_metadata(root: Path) -> None:
    shutil.rmtree(root / "deepspeed")


@pytest.mark.parametrize("damage", [_without_stage3, _only_its_directory, _only_its_metadata])
def test_a_half_installed_package_is_named_as_such(fork: Any, judged: Any, damage: Callable[[Path], None]) -> None:
    root = fork()
    damage(root)
    outcome, reason = judged(root)[PATCH]
    assert outcome == "drifted"
    assert "0.14.2 is registered as installed" in reason
    assert "reinstall deepspeed" in reason


def test_an_empty_directory_is_no_deepspeed(judged: Any, tmp_path: Path) -> None:
    (tmp_path / "deepspeed").mkdir()
    assert judged(tmp_path)[PATCH] == ("not-affected", "deepspeed is not installed")


def test_without_deepspeed_nothing_applies(judged: Any) -> None:
    verdicts = judged()
    assert {outcome for outcome, _ in verdicts.values()} <= {"not-affected", "disabled"}
    assert verdicts[PATCH][1] == "deepspeed is not installed"


@pytest.mark.parametrize(("changes", "expected"), [((), "pending"), ((AS_FIXED,), "already-fixed")])
def test_a_checkout_that_shadows_a_release_is_judged_by_its_own_source(
    fork: Any, judged: Any, original: Path, changes: tuple[Change, ...], expected: str
) -> None:
    release = shutil.copytree(original, fork(*changes, version=None).with_name("release"))
    metadata_file = next(release.glob("*.dist-info")) / "METADATA"
    metadata_file.write_text(metadata_file.read_text().replace("Version: 0.14.2", "Version: 0.19.8"))
    outcome, reason = judged(release.with_name("fork"), release)[PATCH]
    assert outcome == expected
    assert "gives no version" in reason or expected != "pending"


def test_live_a_build_without_a_number_is_patched(fork: Any, run_program: Any) -> None:
    found, _ = run_program("judge", "live", path=fork(version="0.14.3.dev1+g123"))
    assert {name: found["live"][name][0] for name in _OF_0_14_2} == dict.fromkeys(_OF_0_14_2, "applied")


def test_live_a_hand_edit_is_left_alone(fork: Any, run_program: Any) -> None:
    found, errors = run_program("judge", "live", path=fork((SCALING, " " * 8 + MOVE + SCALING)))
    assert found["live"][PATCH][0] == found["static"][PATCH][0] == "already-fixed"
    assert "WARNING" not in errors


def test_live_a_rewritten_function_gives_one_warning(fork: Any, run_program: Any) -> None:
    found, errors = run_program("judge", "live", path=fork((ANCHOR, ANCHOR.replace("clip *", "clip.item() *"))))
    assert found["live"][PATCH][0] == found["static"][PATCH][0] == "drifted"
    (warning,) = [line for line in errors.splitlines() if line.startswith("[dsfix] WARNING")]
    assert PATCH in warning
    assert f"DSFIX_SKIP={PATCH}" in warning


def test_a_function_that_another_package_has_replaced_is_a_conflict_that_names_it(run_program: Any) -> None:
    found, errors = run_program("judge", "live", "before", "replace")
    outcome, reason = found["live"][PATCH]
    assert outcome == "conflict"
    assert "another_package.unscale_and_clip_grads" in reason
    assert "another_package.py:" in reason
    assert len([line for line in errors.splitlines() if line.startswith("[dsfix] WARNING")]) == 1


def test_a_function_whose_code_another_package_has_swapped_is_a_conflict(run_program: Any) -> None:
    found, _ = run_program("judge", "live", "before", "code")
    outcome, reason = found["live"][PATCH]
    assert outcome == "conflict"
    assert "another_package.py:" in reason


def test_beneath_the_wrapper_of_another_package_the_function_is_patched(run_program: Any) -> None:
    found, _ = run_program("judge", "live", "before", "wrap")
    assert found["live"][PATCH][0] == "applied"


def test_the_report_says_so_when_a_function_is_replaced_after_dsfix(run_program: Any) -> None:
    found, _ = run_program("judge", "live", "after", "code,replace")
    assert found["live"][PATCH][0] == "applied"
    assert len(found["later"]) == 2
    for report in found["later"]:
        outcome, reason = report[PATCH]
        assert outcome == "conflict"
        assert "since" in reason


def test_a_caller_that_passes_a_number_is_not_broken(run_program: Any) -> None:
    # a subclass or a fork whose `step` calls .item() does not have the bug, and worked without dsfix
    found, _ = run_program("clip")
    assert found["outcomes"][PATCH] == "applied"
    assert found["tensor"] == [0.25, 0.25]
    assert found["number"] == [0.25, 0.25]
