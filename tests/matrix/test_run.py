"""`python -m matrix run`, on stand-in releases with a stand-in catalogue."""

import os
import signal

import pytest

WAIT = """if os.path.exists({fifo!r}) and release == '0.2.0':
        file = open({fifo!r}, 'w')
        print('here', end='', file=file, flush=True)
        __import__('signal').pause()
"""


def test_all_cells_are_run_once(stand_in):
    stand_in.patch("name_a")
    done = stand_in.matrix("run_proof")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 fixed, 3 not affected"), done.stderr
    assert "5 of 5 cells" in done.stderr
    cell = stand_in.record("name_a")["0.2.0"]
    assert cell.without.detail == "the name is missing in file.py"
    assert (cell.without.patch, cell.patched.patch) == ("disabled", "ran")
    assert cell.versions["deepspeed"] == "0.2.0"
    before = stand_in.record("name_a")
    assert "5 cells, 0 to run" in stand_in.matrix("run_proof").stdout
    assert stand_in.record("name_a") == before
    assert "5 cells, 5 to run" in stand_in.matrix("run_proof", "--again").stdout


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130)])
def test_finished_cells_survive_an_interruption(stand_in, number, status):
    fifo = stand_in.root / "fifo"
    os.mkfifo(fifo)
    stand_in.patch("name_a", body=WAIT.format(fifo=str(fifo)))
    process = stand_in.start("run_proof", "--jobs", "1")
    with open(fifo) as reproduction:
        assert reproduction.read(4) == "here"
        process.send_signal(number)
        assert reproduction.read() == "", "the reproduction is still running"
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == status, stderr
    assert list(before := stand_in.record("name_a")) == ["0.0.0", "0.1.0"]
    if status == 130:
        assert stderr.splitlines()[-1] == "matrix: interrupted; 2 of 5 cells were run and recorded"
        assert "Traceback" not in stderr
    if status != -9:
        return
    fifo.unlink()
    stand_in.patch("name_b")
    done = stand_in.matrix("run_proof")
    assert "10 cells, 8 to run" in done.stdout
    after = stand_in.record("name_a")
    assert {release: after[release] for release in before} == before
    assert done.returncode == 0, done.stdout


def test_near_reruns_a_changed_patch_at_the_edges(stand_in):
    stand_in.patch("name_a", claimed=">=0.2,<0.3", bug=">=0.2,<0.3")
    assert stand_in.matrix("run_proof").returncode == 0
    stand_in.patch("name_a", claimed=">=0.2,<0.3", bug=">=0.2,<0.3", body="assert release")
    assert "4 cells, 4 to run" in stand_in.matrix("run_proof", "--near").stdout
    cells = stand_in.record("name_a")
    assert cells["0.0.0"].earlier != cells["0.2.0"].earlier, "of two versions of the patch"
    assert "5 cells, 1 to run" in stand_in.matrix("run_proof").stdout


def test_a_release_that_cannot_be_installed_affects_only_its_own_cells(stand_in):
    stand_in.patch("name_a")
    stand_in.patch("name_b")
    stand_in.table("9.9.9", (*stand_in.releases, "0.5.0"))
    done = stand_in.matrix("run_proof", "--jobs", "2")
    assert done.returncode == 1
    assert done.stdout.count("deepspeed 0.5.0 cannot be installed: ") == 1
    assert done.stdout.splitlines()[-1] == "4 fixed, 6 not affected, 2 not run"


CONTRADICTIONS = {
    "name_a": (
        {"claimed": ">=0.3,<0.4"},
        "on deepspeed 0.2.0: wrong: the bug occurs outside the claimed range: the name is missing in file.py",
    ),
    "name_b": ({"claimed": ">=0.2,<0.5"}, "on deepspeed 0.4.0: wrong: the bug does not occur inside the claimed range"),
    "name_c": (
        {"body": "assert release != '0.4.0', 'no engine'"},
        "on deepspeed 0.4.0: wrong: without the patch the reproduction gave no answer: AssertionError: no engine",
    ),
}


def test_a_contradiction_of_the_claim_is_reported(stand_in):
    for name, (options, _) in CONTRADICTIONS.items():
        stand_in.patch(name, **options)
    done = stand_in.matrix("run_proof")
    assert done.returncode == 1
    wrong = sorted(line for line in done.stdout.splitlines() if "wrong:" in line)
    assert wrong == [f"{name} {sentence}" for name, (_, sentence) in CONTRADICTIONS.items()]


def test_what_a_preloaded_process_cannot_show_is_run_in_a_fresh_one(stand_in):
    stand_in.patch("usual")
    stand_in.patch("of_torch", module="torch", bug=">=9", claimed=">=9", body="import torch")
    stand_in.patch("fails_after_torch", body="assert not preloaded")
    stand_in.patch("not_after_torch", body="if preloaded: raise CannotTell('torch is there')")
    done = stand_in.matrix("run_proof", "--release", "0.0.0")
    assert done.returncode == 0, done.stdout
    seen = {name: stand_in.record(name)["0.0.0"].patched.detail for name in ("usual", "of_torch")}
    assert seen == {"usual": "preloaded", "of_torch": "fresh"}
    for name in ("fails_after_torch", "not_after_torch"):
        cell = stand_in.record(name)["0.0.0"]
        assert (cell.patched.detail, cell.preloaded) == ("fresh", False)
    assert stand_in.record("usual")["0.0.0"].preloaded
