"""When DeepSpeed's CPU optimizers are recompiled, with a fast stand-in for them."""

import shutil
import subprocess

import pytest

from dsfix.audit import operators
from dsfix.lab.distributions import torch_build

pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed")


def built(directory, torch):
    """Builds a library from one source as torch does."""
    (directory / "cpu_adam.cpp").write_text("first")
    plan = (
        f"cflags = -isystem {torch}/include\nrule copy\n  command = cp $in $out\nbuild cpu_adam.so: copy cpu_adam.cpp\n"
    )
    (directory / "build.ninja").write_text(plan)
    subprocess.run(["ninja", "-C", str(directory)], check=True, capture_output=True)
    return directory


def test_a_current_build_is_kept(tmp_path):
    assert operators._current(built(tmp_path, torch_build().directory))


def test_a_build_for_a_different_torch_is_not_current(tmp_path):
    assert not operators._current(built(tmp_path, tmp_path / "other"))


@pytest.mark.parametrize("what", ["cpu_adam.so", "build.ninja"])
def test_an_incomplete_build_is_not_current(tmp_path, what):
    (built(tmp_path, torch_build().directory) / what).unlink()
    assert not operators._current(tmp_path)


def test_a_build_with_different_flags_is_not_current(tmp_path):
    plan = built(tmp_path, torch_build().directory) / "build.ninja"
    plan.write_text(plan.read_text().replace("cp $in", "cp -f $in"))
    assert not operators._current(tmp_path)
