"""`verify` of the installed release: the founding bug is gone where it was, and nothing of the user's is touched."""

import json
import os
import subprocess
import sys

import pytest
from packaging.version import Version

from dsfix.settings import cache_directory

FOUNDING = "zero3_offload_clip_device"


def _listing(directory):
    """Path -> time of change, of all that is below; a directory's is 0, for what comes and goes there is no trace."""
    return {str(path): 0 if path.is_dir() else path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_the_founding_case_and_nothing_else_is_touched(release, tmp_path):
    places = {name: tmp_path / name for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR", "DSFIX_REPORT")}
    work = tmp_path / "work"
    for directory in (*places.values(), work):
        directory.mkdir()
        (directory / "mine").write_text("mine", encoding="utf-8")
    before = _listing(tmp_path)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DSFIX_")}
    done = subprocess.run(
        [sys.executable, "-m", "dsfix", "verify", FOUNDING, "--json"],
        cwd=work,
        env={
            **inherited,
            **{name: str(path) for name, path in places.items()},
            "DSFIX_CACHE": str(cache_directory().absolute()),
            # in the place of a job among its ranks: what would be waited for is never there
            **{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"},
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert _listing(tmp_path) == before
    assert "Traceback" not in done.stderr
    [patch] = json.loads(done.stdout)["patches"]
    if patch["state"] == "cannot tell":
        pytest.skip(patch["without"]["detail"])
    assert patch["without"]["versions"]["deepspeed"] == str(release)
    affected = Version("0.14.1") <= release < Version("0.14.3")
    assert (patch["state"], done.returncode) == (("fixed", 0) if affected else ("no bug", 0))
