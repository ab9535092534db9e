"""The scripts under examples/, unchanged and under `python -m dsfix run`."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.processes import ended, without_dsfix

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 500  # time limit of a job, which takes 10 on an idle machine
TRAINS_WRONG = "0.18.2"


class Ended:
    """The output and exit status of a job."""

    def __init__(self, done):
        self.status, self.output = done.returncode, done.stdout

    def ranks(self, verdict):
        """The number of ranks whose comparison with PyTorch had this verdict."""
        return self.output.count(f", {verdict}: ")

    def trained_wrong(self):
        """Whether at least one rank reports it: a launcher ends the others when the first fails."""
        return self.ranks("WRONG") > 0 and self.ranks("right") == 0


def run(*command, with_dsfix, **variables):
    """Runs a command in examples/ with these variables."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = without_dsfix(**{"PATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **variables})
    prefix = [sys.executable, "-m", "dsfix", "run"] if with_dsfix else []
    pipes = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = ended([*prefix, *command], EXAMPLES, environment, timeout=SECONDS, **pipes)
    print(done.stdout[-8000:])
    return Ended(done)


@pytest.fixture(scope="session")
def start():
    """Runs a command in examples/: `start(*command, with_dsfix=..., **variables)`."""
    assert metadata.version("deepspeed") == TRAINS_WRONG
    return run
