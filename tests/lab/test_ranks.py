import os
import signal
import subprocess
import sys

import pytest

from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.ranks import launch
from tests.processes import Fifo

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the rank launcher runs on Linux")

FOREVER = "import signal\nwhile True: signal.pause()"
# a rank and its child each write a byte into a FIFO and keep it open until they die
FAMILY = """
import os, signal, subprocess, sys
open_end = os.open(sys.argv[1], os.O_WRONLY)
child = "import os, signal, sys; os.write(%d, b'x'); signal.pause()" % open_end
subprocess.Popen([sys.executable, "-c", child], pass_fds=[open_end])
os.write(open_end, b"x")
if len(sys.argv) > 2:
    os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
    sys.exit()
signal.pause()
"""
LAUNCHER = """
import sys
from dsfix.lab.ranks import launch
launch([sys.executable, "-c", *sys.argv[1:]], ranks=2, timeout=100)
"""


def rank(source):
    return [sys.executable, "-c", source]


@pytest.fixture
def fifo(tmp_path):
    return Fifo(tmp_path / "fifo")


def test_every_rank_knows_its_place():
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS EXTRA"
    source = f"import os, sys; e = os.environ; print(*(e[n] for n in {names!r}.split()))"
    source += "; print(e['MASTER_PORT'], file=sys.stderr)"
    results = launch(rank(source), ranks=2, timeout=30, env={**os.environ, "EXTRA": "more", "OMP_NUM_THREADS": "1"})
    assert [r.stdout for r in results] == ["0 0 2 2 127.0.0.1 1 more\n", "1 1 2 2 127.0.0.1 1 more\n"]
    assert results[0].stderr == results[1].stderr
    assert int(results[0].stderr) > 0
    assert [(r.rank, r.returncode, r.timed_out) for r in results] == [(0, 0, False), (1, 0, False)]


def test_a_failed_rank_ends_the_others():
    source = f"import os\nif os.environ['RANK'] == '1': os._exit(7)\n{FOREVER}"
    results = launch(rank(source), ranks=2, timeout=100)
    assert [(r.returncode, r.timed_out) for r in results] == [(-signal.SIGKILL, False), (7, False)]
    assert results[0].seconds < 50


def test_time_limit():
    source = f"import os\nprint('started', flush=True)\nif os.environ['RANK'] == '1': os._exit(0)\n{FOREVER}"
    results = launch(rank(source), ranks=2, timeout=5.0)
    assert [(r.returncode, r.timed_out) for r in results] == [(-signal.SIGKILL, True), (0, False)]
    assert results[0].stdout == "started\n"


def test_large_output_does_not_block():
    source = "import sys; sys.stdout.write('o' * 5_000_000); sys.stderr.write('e' * 5_000_000)"
    results = launch(rank(source), ranks=2, timeout=60)
    assert [(r.stdout, r.stderr) for r in results] == [("o" * 5_000_000, "e" * 5_000_000)] * 2


def test_program_is_missing():
    with pytest.raises(LabUnavailable, match=r"^the ranks cannot be started: .*no-such-program"):
        launch(["no-such-program"], ranks=2)


def test_children_of_a_finished_rank_are_ended(fifo, tmp_path):
    # the rank ends after the test has seen it and its child
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [sys.executable, "-c", LAUNCHER, FAMILY, fifo.path, str(gate)]
    process = subprocess.Popen(command)
    assert fifo.read(4) == b"xxxx"
    gate_end = os.open(gate, os.O_RDWR)  # stays open: a rank may open its end late
    os.write(gate_end, b"xx")
    assert fifo.all_dead()
    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_orphans_of_a_killed_launcher(number, fifo):
    command = [sys.executable, "-c", LAUNCHER, FAMILY, fifo.path]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert fifo.read(4) == b"xxxx"
    process.send_signal(number)
    assert fifo.all_dead()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
