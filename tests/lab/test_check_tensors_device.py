"""`dsfix.check_tensors_device` on tensors of the emulated devices."""

import pytest

CHECKS = """
import json
from collections import OrderedDict, UserDict, namedtuple
import dsfix
from dsfix.lab import use_cuda
use_cuda()
import torch
from torch.nn.utils.rnn import pack_sequence

Pair = namedtuple("Pair", "left right")
cpu, zero, one, meta = (torch.ones(2, device=name) for name in ("cpu", "cuda:0", "cuda:1", "meta"))
scalar, parameter = torch.tensor(1.0), torch.nn.Parameter(zero)
packed = pack_sequence([zero])  # its lengths are on the CPU
cycle = [zero]
cycle.append(cycle)
deep = cpu
for _ in range(10_000):
    deep = [deep]

def told(*tensors, **named):
    try:
        dsfix.check_tensors_device(*tensors, **named)
    except dsfix.DeviceMismatch as error:
        return str(error)

found = {
    "nothing": told(),
    "one device": told(zero, parameter, [zero], x=zero),
    "no tensors": told(None, 1, "cuda:1", {"a": [None]}, x=object()),
    "among others": told(None, zero, 3, ["a", zero], x=None, y={"ids": zero, "n": 1}),
    "packed": told(packed, zero),
    "cycle": told(cycle),
    "generator": told(zero, (each for each in [cpu])),
    "by position": told(zero, None, cpu),
    "by name": told(input=zero, weight=cpu),
    "nested": told(input=zero, batch={"ids": zero, "labels": [cpu, zero]}),
    "nested by position": told([zero, {"x": (one,)}]),
    "numbers": told(zero, one),
    "tuples of names": told(pair=Pair(zero, cpu)),
    "mappings": told(output=UserDict(OrderedDict(loss=cpu)), x=zero),
    "a cycle astray": told(cycle, cpu),
    "deep": told(deep, x=zero)[-20:],
    "packed astray": told(packed=packed, x=cpu),
    "meta": told(zero, meta),
    "0-dim": told(zero, scalar),
    "many": told(*[zero] * 7, x=cpu),
    "three": told(a=zero, b=one, c=cpu, d=zero),
}
try:
    dsfix.check_tensors_device(zero, x=cpu)
except RuntimeError as error:
    import pickle
    found["devices"] = [error.devices, str(pickle.loads(pickle.dumps(error))) == str(error)]
print(json.dumps(found))
"""
TWO = "tensors are on 2 devices: "
EXPECTED = {
    "nothing": None,
    "one device": None,
    "no tensors": None,
    "among others": None,
    "packed": None,
    "cycle": None,
    "generator": None,
    "by position": TWO + "tensors[0] on cuda:0; tensors[2] on cpu",
    "by name": TWO + "input on cuda:0; weight on cpu",
    "nested": TWO + "batch['labels'][0] on cpu; input, batch['ids'], batch['labels'][1] on cuda:0",
    "nested by position": TWO + "tensors[0][0] on cuda:0; tensors[0][1]['x'][0] on cuda:1",
    "numbers": TWO + "tensors[0] on cuda:0; tensors[1] on cuda:1",
    "tuples of names": TWO + "pair[0] on cuda:0; pair[1] on cpu",
    "mappings": TWO + "output['loss'] on cpu; x on cuda:0",
    "a cycle astray": TWO + "tensors[0][0] on cuda:0; tensors[1] on cpu",
    "deep": "[0] on cpu; x on cuda:0"[-20:],
    "packed astray": TWO + "packed['data'] on cuda:0; x on cpu",
    "meta": TWO + "tensors[0] on cuda:0; tensors[1] on meta",
    "0-dim": TWO + "tensors[0] on cuda:0; tensors[1] on cpu",
    "many": TWO + "x on cpu; tensors[0], tensors[1], tensors[2], tensors[3], tensors[4] and 2 more on cuda:0",
    "three": "tensors are on 3 devices: b on cuda:1; c on cpu; a, d on cuda:0",
    "devices": [{"cuda:0": ["tensors[0]"], "cpu": ["x"]}, True],
}


@pytest.fixture(scope="module")
def found(emulated, answer):
    return answer(CHECKS)


@pytest.mark.parametrize("case", EXPECTED)
def test_check(found, case):
    assert found[case] == EXPECTED[case]


def test_in_a_compiled_function(emulated, answer):
    source = """
import json
import dsfix, torch

def f(x, y):
    dsfix.check_tensors_device(x, inputs={"y": [y]})
    return x + y

print(json.dumps(torch.compile(f, backend="eager")(torch.ones(2), torch.ones(2)).tolist()))
"""
    assert answer(source) == [2.0, 2.0]
