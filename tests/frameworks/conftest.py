"""Shared by the tests of frameworks: scripts run as their users run them, on the machine of the demonstration."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.versions import RangeMatch, gate
from tests.processes import ended, without_dsfix

ROOT = Path(__file__).parents[2]
SERVER = Path(__file__).parent / "programs" / "server.py"
MACHINE = ROOT / "demo" / "machine"  # a GPU, or the emulated device: the frameworks use DeepSpeed only there


def environment(**variables):
    env = without_dsfix(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", GLOO_SOCKET_IFNAME="lo", **variables)
    env["PYTHONPATH"] = os.pathsep.join([str(MACHINE), *filter(None, [env.get("PYTHONPATH")])])
    return env


@pytest.fixture
def run(tmp_path):
    """Runs a script in a fresh process; keywords are more environment variables."""

    def call(script, *arguments, **variables):
        return ended([sys.executable, script, *arguments], tmp_path, environment(**variables))

    return call


@pytest.fixture(scope="session")
def _server():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, SERVER], env=environment(), **pipes) as server:
        yield server
        server.stdin.close()


@pytest.fixture
def ranks(_server, tmp_path_factory):
    """Runs a command on two ranks; keywords are more environment variables. Returns whether they succeeded, and what
    rank 0 printed; after a failure also which rank failed, and what it printed."""

    def call(command, **variables):
        directory = tmp_path_factory.mktemp("ranks")
        script, *arguments = command.split()
        job = [[str(ROOT / script), *arguments], variables, str(directory)]
        print(json.dumps(job), file=_server.stdin, flush=True)
        failed = json.loads(_server.stdout.readline())
        printed = [directory.joinpath(str(rank)).read_text(encoding="utf-8", errors="replace") for rank in (0, 1)]
        if failed is None:
            return True, printed[0]
        rank, status = failed
        return False, f"{printed[0]}\nrank {rank} ended with status {status}\n{printed[1] if rank else ''}"

    return call


@pytest.fixture
def applies():
    """Whether a patch is for the installed DeepSpeed."""

    def call(patch_id):
        affects = catalogue()[patch_id].patch.affects
        return find_spec("deepspeed") is not None and gate(affects).fit is not RangeMatch.OUTSIDE

    return call
