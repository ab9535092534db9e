"""The process that has imported torch, from which ranks are forked."""

import os
import subprocess

import pytest

from dsfix.lab.cuda.compiling import library
from dsfix.lab.cuda.load import SCHEDULE
from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.preload import ForkServer

RANK = """
def main():
    from dsfix.lab import Lab

    with Lab("cuda") as lab:
        torch = lab.torch
        source, other = torch.ones(4, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(other):
            source.add_(1)
        print((source * 1).sum().item())
    return 0
"""


def test_output_of_a_script_is_not_mistaken_for_the_answer(tmp_path):
    """DeepSpeed through 0.17 logs to standard output on import."""
    (script := tmp_path / "script.py").write_text("print('[INFO] Setting ds_accelerator', flush=True)\n")
    (tmp_path / "rank.py").write_text("def main(word):\n    print(word)\n    return 0\n")
    with ForkServer("cpu", script, environment={"PYTHONPATH": str(tmp_path)}) as preloaded:
        done = subprocess.run(
            [*preloaded.command("rank"), "heard"], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
        )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


def test_the_processor_is_described_once_for_all_ranks(tmp_path):
    """py-cpuinfo takes a second, and DeepSpeed's optimizers for offload ask it three times on each rank."""
    asked = tmp_path / "asked"
    (tmp_path / "cpuinfo.py").write_text(
        f"def get_cpu_info():\n    open({str(asked)!r}, 'a').write('once ')\n    return {{'arch': 'X86_64'}}\n"
    )
    (tmp_path / "rank.py").write_text("import cpuinfo\ndef main():\n    print(cpuinfo.get_cpu_info())\n    return 0\n")
    with ForkServer("cpu", environment={"PYTHONPATH": str(tmp_path)}) as preloaded:
        ranks = [
            subprocess.run(preloaded.command("rank"), env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
            for _ in range(2)
        ]
    assert [done.stdout for done in ranks] == ["{'arch': 'X86_64'}\n"] * 2, ranks[0].stderr
    assert asked.read_text() == "once "


def test_why_the_process_ended_is_reported(tmp_path):
    (script := tmp_path / "script.py").write_text("raise OSError('libgomp is missing')\n")
    with pytest.raises(LabUnavailable, match="ended: OSError: libgomp is missing"):
        ForkServer("cpu", script)


def test_a_process_with_threads_is_not_forked(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=[600], daemon=True).start()\n")
    with pytest.raises(LabUnavailable, match="threads, which a fork would lose"):
        ForkServer("cpu", script)


@pytest.mark.parametrize("preloads", [(), ("import dsfix.lab.cuda\n",)])
def test_a_forked_rank_follows_the_schedule_of_its_environment(tmp_path, preloads):
    """The rank does not wait for the other stream, which the late schedule has done last."""
    try:
        library()
    except LabUnavailable as reason:
        pytest.skip(str(reason))
    scripts = [tmp_path / f"script{number}.py" for number in range(len(preloads))]
    for path, text in zip(scripts, preloads):
        path.write_text(text)
    (tmp_path / "rank.py").write_text(RANK)
    environment = {"PYTHONPATH": str(tmp_path)} if scripts else None
    with ForkServer("cuda", *scripts, environment=environment) as preloaded:
        for schedule, expected in (("", "8.0"), ("late", "4.0"), ("early", "8.0")):
            done = subprocess.run(
                preloaded.command("rank"),
                env={**os.environ, "PYTHONPATH": str(tmp_path), SCHEDULE: schedule},
                capture_output=True,
                text=True,
            )
            assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr
