"""What the check at deepspeed.initialize learns about the job."""

from types import SimpleNamespace

import pytest

from dsfix.guards import config_check
from dsfix.outcome import Outcome


class Model:
    """A stand-in: modules and tensors by name, with the names to keep in fp32 of the root."""

    def __init__(self, kept=(), buffers=(), parameters=(), inner_kept=()):
        self._keep_in_fp32_modules_strict = kept
        self._inner = SimpleNamespace(_keep_in_fp32_modules_strict=list(inner_kept))
        self._buffers = dict(buffers)
        self._parameters = parameters

    def named_modules(self):
        return [("", self), ("inner", self._inner)]

    def named_buffers(self):
        return [(name, SimpleNamespace(dtype=dtype)) for name, dtype in self._buffers.items()]

    def parameters(self):
        return [SimpleNamespace(dtype=dtype) for dtype in self._parameters]


HALF = {"inner.gate.bias": "torch.bfloat16"}


def found(monkeypatch, model=None, release="0.19.7", patched=False, **arguments):
    monkeypatch.setattr(config_check.versions, "installed", lambda name: release)
    reports = [SimpleNamespace(id="half_routing_bias", outcome=Outcome.APPLIED)] if patched else []
    monkeypatch.setattr(config_check, "patch_reports", lambda: reports)
    return config_check._of_the_job(SimpleNamespace(model=model, arguments=arguments))


@pytest.mark.parametrize(
    ("kept", "buffers", "release", "loses"),
    [
        (["bias"], HALF, "0.19.7", True),
        (["gate*bias"], HALF, "0.19.7", True),
        (None, HALF, "0.19.7", False),
        (["scale"], HALF, "0.19.7", False),
        (["bias"], {"inner.gate.bias": "torch.float32"}, "0.19.7", False),
        (["bias"], {"inner.gate.bias": "torch.float32"}, "0.19.1", True),
        (["bias"], {"inner.gate.bias": "torch.int64"}, "0.19.1", False),
    ],
)
def test_buffers_that_a_model_keeps_in_fp32(monkeypatch, kept, buffers, release, loses):
    assert found(monkeypatch, Model(kept, buffers), release)["fp32_buffers"] is loses


def test_names_of_an_inner_model_are_those_below_it(monkeypatch):
    assert found(monkeypatch, Model(inner_kept=["bias"], buffers=HALF))["fp32_buffers"] is True
    outer = {"gate.bias": "torch.bfloat16"}
    assert found(monkeypatch, Model(inner_kept=["bias"], buffers=outer))["fp32_buffers"] is False


def test_the_bias_that_a_patch_keeps_in_fp32_is_not_reported(monkeypatch):
    router = {"inner.e_score_correction_bias": "torch.float32"}
    model = Model(["bias"], router)
    assert found(monkeypatch, model, "0.19.1")["fp32_buffers"] is True
    assert found(monkeypatch, model, "0.19.1", patched=True)["fp32_buffers"] is False
    assert found(monkeypatch, Model(["bias"], HALF), "0.19.1", patched=True)["fp32_buffers"] is True


def test_float8_parameters(monkeypatch):
    assert found(monkeypatch, Model(parameters=["torch.float32", "torch.float8_e4m3fn"]))["float8"] is True
    assert found(monkeypatch, Model(parameters=["torch.float32"]))["float8"] is False


def test_processes_and_tensor_parallel_ranks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    mpu = SimpleNamespace(get_model_parallel_world_size=lambda: 8, get_tensor_model_parallel_world_size=lambda: 2)
    assert found(monkeypatch, mpu=mpu) == {"launched": 4, "tensor_parallel": 2}
    monkeypatch.delenv("WORLD_SIZE")
    assert found(monkeypatch, mpu=object()) == {}
