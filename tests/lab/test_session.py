import json
import sys
from pathlib import Path

import pytest

from dsfix.lab import Lab, launch
from dsfix.patch import CannotTell

# ZeRO-3 with accumulation, clipping and an offloaded optimizer, compared with plain PyTorch on the global batch
TRAIN = """
import json, os, sys
from dsfix.lab import Lab

STEPS, ACCUMULATION, CLIP, RATE = 3, 2, 0.05, 1e-2
with Lab(sys.argv[1]) as lab:
    models, reference, functional = lab.models, lab.reference, lab.torch.nn.functional
    engine = lab.initialize(models.MLP(), {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": ACCUMULATION, "gradient_clipping": CLIP,
        "optimizer": {"type": "Adam", "params": {"lr": RATE}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})
    norms = []
    for step in range(STEPS):
        for micro in range(ACCUMULATION):
            inputs, targets = (t.to(lab.device) for t in models.regression_batch(lab.rank, step * ACCUMULATION + micro))
            engine.backward(functional.mse_loss(engine(inputs), targets))
            engine.step()
        norms.append(float(engine.get_global_grad_norm()))
    parameters = lab.parameters(engine)
    expected_model = models.MLP()
    expected = reference.train(expected_model, [
        [models.regression_batch(rank, step * ACCUMULATION + micro)
         for rank in range(lab.world_size) for micro in range(ACCUMULATION)]
        for step in range(STEPS)], expected_model.loss, "AdamW", CLIP, lr=RATE)
    print(json.dumps(dict(
        device=str(lab.device), emulated=lab.emulated, accelerator=lab.deepspeed.accelerator.get_accelerator()._name,
        difference=reference.largest_difference(parameters, expected.parameters).relative,
        moved=reference.largest_difference(models.MLP().state_dict(), expected.parameters).relative,
        norms=norms, expected_norms=expected.gradient_norms,
        parameters={name: p.flatten().tolist() for name, p in parameters.items()})))
"""


@pytest.fixture(scope="module")
def results(emulated, has_deepspeed):
    """The results of two ranks, by kind of device."""

    def run(device):
        ranks = launch([sys.executable, "-c", TRAIN, device], ranks=2, timeout=240)
        assert [r.returncode for r in ranks] == [0, 0], ranks[0].stderr
        return [json.loads(r.stdout.splitlines()[-1]) for r in ranks]

    return {"cuda": run("cuda"), "cpu": run("cpu")}


def test_each_rank_has_its_device(results):
    for rank, result in enumerate(results["cuda"]):
        assert (result["device"], result["emulated"], result["accelerator"]) == (f"cuda:{rank}", True, "cuda")
    for result in results["cpu"]:
        assert (result["device"], result["emulated"], result["accelerator"]) == ("cpu", False, "cpu")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_training_equals_the_reference(results, device):
    for result in results[device]:
        assert result["norms"] == pytest.approx(result["expected_norms"], rel=1e-4)
        assert result["difference"] < 1e-4 < result["moved"]


def test_emulated_device_equals_the_cpu_accelerator(results):
    for name, values in results["cpu"][0]["parameters"].items():
        assert results["cuda"][0]["parameters"][name] == pytest.approx(values, rel=1e-5, abs=1e-7)


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


def test_models_and_reference_load_the_device_first(emulated, has_torch, answer):
    source = """
import json
from dsfix.lab import Lab
with Lab("cuda") as lab:
    model = lab.models.MLP().to(lab.device)
    training = lab.reference.train(lab.models.MLP(), [], None)
    print(json.dumps([str(model.head.weight.device), sorted(training.parameters) == sorted(model.state_dict())]))
"""
    assert answer(source) == ["cuda:0", True]


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


def test_scratch_directory_is_removed():
    with Lab() as lab:
        (lab.tmp / "file").touch()
        directory = lab.tmp
    assert not directory.exists()


def test_ranks_share_their_scratch_directory():
    source = "from dsfix.lab import Lab\nwith Lab() as lab: (lab.tmp / str(lab.rank)).touch(); print(lab.tmp)"
    first, second = launch([sys.executable, "-c", source], ranks=2, timeout=60)
    assert first.stdout == second.stdout
    assert Path(first.stdout.strip()).is_absolute()
    assert not Path(first.stdout.strip()).exists()


def test_device_is_checked():
    with pytest.raises(ValueError, match="'cuda' or 'cpu', got 'gpu'"):
        Lab("gpu")
