import sys
from pathlib import Path

import pytest

from dsfix.lab import Lab, launch
from dsfix.patch import CannotTell


def test_importing_the_lab_imports_no_torch(answer):
    source = """
import json, sys
import dsfix.lab, dsfix.lab.cuda, dsfix.lab.session
lab = dsfix.lab.Lab("cuda")
lab.rank, lab.world_size, lab.tmp
lab.close()
print(json.dumps([name for name in ("torch", "deepspeed", "numpy") if name in sys.modules]))
"""
    assert answer(source) == []


def test_script_on_the_emulated_device(emulated, has_deepspeed, answer):
    source = """
import json
from dsfix.lab import use_cuda
kind = use_cuda()
import torch, deepspeed
from deepspeed.accelerator import get_accelerator
config = {"train_batch_size": 1, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
engine, *_ = deepspeed.initialize(model=torch.nn.Linear(2, 1), config=config)
loss = engine(torch.ones(1, 2, device=engine.device)).sum()
engine.backward(loss)
engine.step()
torch.distributed.destroy_process_group()
print(json.dumps([kind, get_accelerator().device_name(), str(loss.device)]))
"""
    assert answer(source) == ["emulated CUDA device", "cuda", "cuda:0"]


def test_missing_torch_is_cannot_tell(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotTell, match=r"^torch is not installed$"):
        Lab("cuda").torch  # noqa: B018


def test_missing_deepspeed_is_cannot_tell(monkeypatch):
    import importlib.metadata

    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(CannotTell, match=r"^deepspeed is not installed$"):
        Lab("cpu").deepspeed  # noqa: B018


def test_number_of_ranks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    lab = Lab()
    lab.require_ranks(1)
    with pytest.raises(CannotTell, match=r"^needs 2 ranks, found 1$"):
        lab.require_ranks(2)


def test_ranks_share_their_scratch_directory():
    source = "from dsfix.lab import Lab\nwith Lab() as lab: (lab.tmp / str(lab.rank)).touch(); print(lab.tmp)"
    first, second = launch([sys.executable, "-c", source], ranks=2, timeout=60)
    assert first.stdout == second.stdout
    assert Path(first.stdout.strip()).is_absolute()
    assert not Path(first.stdout.strip()).exists()
