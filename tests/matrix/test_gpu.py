"""`python -m matrix gpu`: what is recorded, and collectives of ranks that share a device."""

import json
import os
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue
from dsfix.lab.cuda import compiling
from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.ranks import fresh_command, launch
from matrix import fingerprints, proofs
from matrix.gpu import results

CHECKOUT = Path(__file__).resolve().parents[2]
VERSIONS = {"torch": "2.11.0+cu130", "numpy": "2.5.2", "python": "3.12.3"}
ENTRY = catalogue()["zero3_offload_clip_device"]  # on a GPU; 0.14.1 and 0.14.2


def result(path, emulated=False, digest=""):
    run = {"outcome": "bug", "patch": "disabled", "detail": "the bug"}
    cell = {
        "without": run,
        "patched": {**run, "outcome": "no-bug", "patch": "applied"},
        "versions": {**VERSIONS, "deepspeed": "0.14.2"},
        "device": "NVIDIA H100",
        "preloaded": False,
        "date": "2026-11-23",
        "earlier": None,
    }
    row = {"kind": "cell", "name": ENTRY.id, "release": "0.14.2", "state": "fixed", "why": "w", "cell": cell}
    failed = {"kind": "audit", "name": "ZeRO 3", "release": "0.19.8", "state": "failed", "why": "the reason"}
    current = fingerprints.of(ENTRY)
    data = {
        "machine": {"emulated": emulated, "device": "NVIDIA H100", "driver": "580", "versions": VERSIONS},
        "fingerprints": {ENTRY.id: [digest or current.declaration, current.reproduction]},
        "seconds": 400.0,
        "items": [row, failed],
    }
    path.write_text(json.dumps(data))
    return results.load(path)


@pytest.mark.parametrize("digest", ["", "before"])
def test_the_cells_are_a_column_of_the_record(tmp_path, digest):
    """Marked, if the patch has changed since."""
    found = result(tmp_path / "result.json", digest=digest)
    assert results.record(found, tmp_path / "proofs") == 1
    assert "ZeRO 3 on deepspeed 0.19.8: failed: the reason" in found.lines
    cells = proofs.load(ENTRY, tmp_path / "proofs").cells
    [(release, cell)] = cells.pop("torch-2.11.0 on NVIDIA H100").items()
    assert cells == {}
    assert (release, proofs.judge(ENTRY.patch, cell)[0]) == ("0.14.2", proofs.State.FIXED)
    assert (cell.earlier.declaration if cell.earlier else "") == digest


def test_the_emulated_device_is_not_recorded(tmp_path):
    found = result(tmp_path / "result.json", emulated=True)
    assert (found.column, results.record(found, tmp_path / "proofs")) == ("", 0)
    assert not (tmp_path / "proofs").exists()


RANK = """
from dsfix.lab import Lab

def main():
    lab = Lab()
    torch = lab.torch
    distributed = torch.distributed
    distributed.init_process_group("nccl", device_id=lab.device)
    rank = distributed.get_rank()
    assert str(lab.device) == "cuda:0", lab.device
    mine = torch.full((2,), float(rank + 1), device="cuda")
    summed, gathered, scattered = mine.clone(), torch.empty(4, device="cuda"), torch.empty(2, device="cuda")
    distributed.all_reduce(summed)
    distributed.all_gather_into_tensor(gathered, mine, async_op=True).wait()
    distributed.reduce_scatter_tensor(scattered, torch.arange(4.0, device="cuda"))
    gathered[2 * rank : 2 * rank + 2] += 1
    distributed.all_gather_into_tensor(gathered, gathered[2 * rank : 2 * rank + 2])  # in place
    others = torch.empty(4, device="cuda")
    with distributed._coalescing_manager(device=lab.device):
        distributed.all_gather_into_tensor(others, mine)
    group = distributed.new_group([0, 1], backend="nccl")
    distributed.all_reduce(mine, group=group)
    distributed.barrier()
    print([each.tolist() for each in (summed, gathered, scattered, others, mine)])
    return 0
"""


def test_ranks_share_one_device(tmp_path):
    try:
        compiling.library()
    except LabUnavailable as error:
        pytest.skip(str(error))
    (tmp_path / "shared_device_rank.py").write_text(RANK)
    path = os.pathsep.join([str(tmp_path), str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    command = [*fresh_command("matrix.gpu.one_gpu"), "shared_device_rank"]
    ranks = launch(command, 2, 200, {**os.environ, "PYTHONPATH": path}, tmp_path)
    gathered = [2.0, 2.0, 3.0, 3.0]
    for rank, scattered in zip(ranks, ([0.0, 2.0], [4.0, 6.0])):
        assert rank.returncode == 0, rank.stderr
        seen = json.loads(rank.stdout.splitlines()[-1])
        assert seen == [[3.0, 3.0], gathered, scattered, [1.0, 1.0, 2.0, 2.0], [3.0, 3.0]]
