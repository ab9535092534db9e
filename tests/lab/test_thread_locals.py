"""What a patch puts into torch's thread-local storage outlives the backward pass that it is for, with any torch."""

import subprocess
import sys

DIVIDERS = """
import contextlib, sys, types
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
inner = None
assert sys.getrefcount(outer) == 2, sys.getrefcount(outer)  # this name, and the argument
assert sys.getrefcount(()) > empty - 100
"""


def test_dividers_of_a_backward_pass():
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", DIVIDERS], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
