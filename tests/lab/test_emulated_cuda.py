"""The behaviour of the emulated device, observed in one process."""

import pytest

TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
ANOTHER = "Expected all tensors to be on the same device, but got {0} is on {1}, different from other tensors on {2} "

QUESTIONS = """
import io, json, sys
from dsfix.lab import use_cuda
kind = use_cuda()
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

def error(call):
    try:
        call()
    except Exception as e:
        return str(e).splitlines()[0]
    return None

a, host = torch.ones(2, 2, device="cuda"), torch.ones(2, 2)
scalar, host_scalar = torch.tensor(2.0, device="cuda"), torch.tensor(2.0)
known = dict(kind=kind, again=use_cuda(), device=str(a.device), type=a.type(), is_cuda=a.is_cuda,
             available=torch.cuda.is_available())
refused = dict(
    add=error(lambda: a + host),
    mul_=error(lambda: host.mul_(scalar)),
    out=error(lambda: torch.add(a, a, out=torch.empty(2, 2))),
    foreach=error(lambda: torch._foreach_mul_([a.clone(), a.clone()], [host_scalar, host])),
    matmul=error(lambda: a @ host),
    stack=error(lambda: torch.stack([scalar, host_scalar])),
    embedding=error(lambda: nn.functional.embedding(torch.tensor([1]), a)),
    index=error(lambda: host[torch.tensor([0], device="cuda")]),
    two_scalars=error(lambda: torch.addcmul(a, host_scalar, host_scalar)),
    other_gpu=error(lambda: a + torch.ones(2, 2, device="cuda:1")),
    layer=error(lambda: nn.Linear(2, 2)(a)),
    no_such_device=error(lambda: torch.empty(1, device="cuda:8")),
)
allowed = dict(
    scalar=error(lambda: a * host_scalar),
    index=error(lambda: a[torch.tensor([0])]),
    foreach=error(lambda: torch._foreach_mul_([a.clone()], host_scalar)),
    where=error(lambda: torch.where(a > 0, host_scalar, a)),
    copy=error(lambda: host.clone().copy_(a)),
)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
x = torch.randn(3, 4)
def gradients(device, reentrant):
    model.to(device).zero_grad()
    inputs = x.to(device).requires_grad_()
    result = model(inputs) if reentrant is None else checkpoint(model, inputs, use_reentrant=reentrant)
    result.sum().backward()
    return [str(p.grad.device) for p in model.parameters()], [p.grad.cpu().clone() for p in model.parameters()]
on_host = gradients("cpu", None)[1]
autograd = {}
for how in (None, True, False):
    places, values = gradients("cuda", how)
    autograd[str(how)] = set(places) == {"cuda:0"} and all(map(torch.equal, values, on_host))
model[0].weight.data = model[0].weight.data.cpu()
reseated = str(model[0].weight.device)

with torch.cuda.device(3):
    third = str(torch.empty(1, device="cuda").device), torch.cuda.current_device()
known.update(third=third, back=torch.cuda.current_device(), count=torch.cuda.device_count(), reseated=reseated)

before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
big = torch.ones(1 << 20, device="cuda")
double = big * 2
held = torch.cuda.memory_allocated() - before
del double
big.untyped_storage().resize_(0)
memory = dict(held=held, freed=torch.cuda.memory_allocated() - before, peak=torch.cuda.max_memory_allocated() - before,
              elsewhere=torch.cuda.memory_allocated(1))

stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream):
    event.record()
stream.wait_stream(torch.cuda.current_stream())
torch.cuda.synchronize()
state = torch.cuda.get_rng_state()
random = torch.rand(3, device="cuda")
torch.cuda.set_rng_state(state)
file = io.BytesIO()
torch.save(a, file)
file.seek(0)
other = dict(
    stream=str(stream.device), elapsed=event.elapsed_time(event), rng=torch.equal(random, torch.rand(3, device="cuda")),
    loaded=str(torch.load(file).device), pinned=[host.pin_memory().is_pinned(), host.is_pinned()],
    legacy=[isinstance(a, torch.cuda.FloatTensor), torch.cuda.HalfTensor([1.0]).type()],
)
with torch.autocast("cuda", dtype=torch.bfloat16):
    other["autocast"] = str((a @ a).dtype)
try:
    import triton
except ImportError:
    other["triton"] = "hidden"
print(json.dumps(dict(known=known, refused=refused, allowed=allowed, autograd=autograd, memory=memory, other=other)))
"""


@pytest.fixture(scope="module")
def seen(emulated, answer):
    return answer(QUESTIONS)


def test_tensors_are_on_cuda(seen):
    assert seen["known"] == {
        "kind": "emulated CUDA device",
        "again": "emulated CUDA device",
        "device": "cuda:0",
        "type": "torch.cuda.FloatTensor",
        "is_cuda": True,
        "available": True,
        "third": ["cuda:3", 3],
        "back": 0,
        "count": 8,
        "reseated": "cpu",
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("add", TWO_DEVICES),
        ("mul_", TWO_DEVICES),
        ("out", TWO_DEVICES),
        ("foreach", TWO_DEVICES),
        ("other_gpu", TWO_DEVICES.replace("cpu", "cuda:1")),
        ("two_scalars", "Trying to pass too many CPU scalars to non-CPU kernel!"),
        ("index", "indices should be either on cpu or on the same device as the indexed tensor (cpu)"),
    ],
)
def test_exact_message(seen, call, message):
    assert seen["refused"][call] == message


@pytest.mark.parametrize(
    ("call", "start"),
    [
        ("matmul", ANOTHER.format("mat2", "cpu", "cuda:0")),
        ("stack", ANOTHER.format("tensors", "cpu", "cuda:0")),
        ("embedding", ANOTHER.format("index", "cpu", "cuda:0")),
        ("layer", ANOTHER.format("mat1", "cuda:0", "cpu")),
        ("no_such_device", "CUDA error: invalid device ordinal"),
    ],
)
def test_message_of_an_operator_without_mixed_devices(seen, call, start):
    assert seen["refused"][call].startswith(start)


def test_operations_that_a_gpu_allows_are_allowed(seen):
    assert seen["allowed"] == dict.fromkeys(seen["allowed"])


def test_autograd_and_checkpointing_equal_the_cpu(seen):
    assert seen["autograd"] == {"None": True, "True": True, "False": True}


def test_memory_is_counted(seen):
    assert seen["memory"] == {"held": 8 << 20, "freed": 0, "peak": 8 << 20, "elsewhere": 0}


def test_streams_generators_files_and_types(seen):
    assert seen["other"] == {
        "stream": "cuda:0",
        "elapsed": 0.0,
        "rng": True,
        "loaded": "cuda:0",
        "pinned": [True, False],
        "legacy": [True, "torch.cuda.HalfTensor"],
        "autocast": "torch.bfloat16",
        "triton": "hidden",
    }


def test_an_incompatible_torch_is_named(emulated, answer):
    source = """
import json
from dsfix.lab import use_cuda
use_cuda()
import torch
from dsfix.lab.cuda import selftest
before = selftest.fault()
torch.nn.functional.layer_norm = lambda tensor, shape: tensor.cpu()
print(json.dumps([before, selftest.fault()]))
"""
    assert answer(source) == ["", "layer_norm gives a different result than on the CPU"]


def test_torch_imported_first_is_an_error(emulated, answer):
    source = """
import json, torch
from dsfix.lab import LabUnavailable, use_cuda
try:
    use_cuda()
except LabUnavailable as error:
    print(json.dumps(str(error)))
"""
    expected = "torch is already imported; the emulated CUDA device must be loaded before it"
    assert answer(source) == expected
