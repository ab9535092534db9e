"""Ray, and two hosts: the unchanged job trains incorrectly, and correctly with dsfix."""

import os
import shutil
import subprocess

import pytest


def _namespaces():
    """Why this machine cannot simulate two hosts, or None."""
    if shutil.which("ip") is None:
        return "the program `ip` is missing"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"dsfix-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"cannot create a network namespace: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def test_ray(start):
    unpatched = start("python", "ray_train.py", with_dsfix=False)
    assert unpatched.status == 1
    assert unpatched.trained_wrong()

    below_run = start("python", "ray_train.py", with_dsfix=True)
    assert below_run.status == 0
    assert below_run.ranks("right") == 2

    by_hook = start("python", "ray_train.py", "--hook", with_dsfix=False)
    assert by_hook.status == 0
    assert by_hook.ranks("right") == 2


def test_two_hosts(start):
    reason = _namespaces()
    if reason is not None:
        pytest.skip(reason)
    unpatched = start("sh", "two_hosts.sh", with_dsfix=False)
    assert unpatched.status != 0
    assert unpatched.trained_wrong()

    below_run = start("sh", "two_hosts.sh", with_dsfix=True)
    assert below_run.status == 0
    assert below_run.ranks("right") == 2
    assert subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.count("dsfix-") == 0
