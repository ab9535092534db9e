"""Torch's thread-local storage, saved tensors and compiled code in patches, which each torch treats differently."""

import subprocess
import sys

import pytest

DIVIDERS = """
import contextlib, gc, sys, types
import torch
from dsfix.catalogue.registry import catalogue

patch = catalogue()["dict_output_double_scaling"].module
engine = types.SimpleNamespace(gradient_accumulation_steps=lambda: 4)
empty = sys.getrefcount(())
for _ in range(1000):
    with patch.of_loss(contextlib.nullcontext(), engine, True):
        with patch.of_loss(contextlib.nullcontext(), engine, True):
            outer, inner = patch._dividers()
            assert outer == inner == (id(engine), 4)
        assert patch._dividers() == (outer,)
    assert patch._dividers() == ()
torch._C._stash_obj_in_tls("another", None)
gc.collect()
assert sys.getrefcount(outer) < 10 and sys.getrefcount(()) > empty - 100
kept = {id(each): sys.getrefcount(each) for each in patch._kept.values()}
assert len(kept) == 3 and min(kept.values()) > 2  # the dict, torch, and those of here
"""


SAVED = """
import torch
from dsfix.catalogue.registry import catalogue

patch = catalogue()["dict_output_double_scaling"].module
calls = []
x = torch.ones(3, requires_grad=True)
number, plain = x.sum() * 4, x.sum() / torch.tensor(8.0)
with torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: calls.append(each) or each):
    hooked, written = x.sum() / torch.tensor(8.0), 2 * x.sum()
for _ in range(2):
    factors = [patch._factor(each.grad_fn) for each in (number, plain, hooked, written)]
    assert factors == [4, 1 / 8, 1, 2], factors
assert calls == []
(number + plain + hooked + written).backward()
assert x.grad.tolist() == [4 + 1 / 8 + 1 / 8 + 2] * 3 and len(calls) == 1
"""

COMPILED = """
import torch
from dsfix.process import effects

told = []
effects.start_recording(lambda: told.append("told"))
effects.log.rank = lambda: 1

@torch.compile(backend="eager", fullgraph=True)
def function(x):
    if effects.has_not_run("one"):
        effects.ran("one")
    if effects.is_unreported("two") and x.dim() == 1:
        effects.took_effect("two", "divided by %s", 2)
    return x * 2

function(torch.ones(1))
with torch.compiler.set_stance("fail_on_recompile") if hasattr(torch.compiler, "set_stance") else torch.no_grad():
    effects.ran("another")
    function(torch.ones(1))
assert told == ["told"] * 3 and effects._effects["two"].what == "divided by 2"
"""


@pytest.mark.parametrize(
    "program", [DIVIDERS, SAVED, COMPILED], ids=["dividers of a backward pass", "saved numbers", "telling"]
)
def test_with_this_torch(program):
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
