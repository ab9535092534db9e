"""What the device checks cost, as ratios measured in one run: ``python bench/devices.py [--rounds N]``.

Median and quartiles of N rounds (default 31), each of which times both sides of a ratio in turn.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import timeit
from typing import Callable

import torch
from torch import nn

import dsfix

TENSORS = 100_000


class Block(nn.Module):
    """Four parameters, a buffer and a few ordinary attributes, like a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(2, 2), nn.Linear(2, 2)
        self.width, self.eps, self.name = 2, 1e-6, "block"
        self.register_buffer("scale", torch.ones(2))


def seconds(call: Callable[[], object], calls: int) -> float:
    return timeit.timeit(call, timer=time.process_time, number=calls) / calls


def row(what: str, call: Callable[[], object], against: Callable[[], object], calls: int, rounds: int) -> str:
    pairs = [(seconds(call, calls), seconds(against, calls)) for _ in range(rounds)]
    ratios = [one / other for one, other in pairs]
    quartiles = statistics.quantiles(ratios, n=4)
    each = statistics.median(one for one, _ in pairs)
    time_taken = f"{each * 1e6:.1f} µs" if each < 1e-3 else f"{each:.2f} s"
    return f"| {what} | {statistics.median(ratios):.2f} | {quartiles[0]:.2f} to {quartiles[2]:.2f} | {time_taken} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    a, b, c, d = (torch.ones(4) for _ in range(4))
    batch = {"input_ids": a, "labels": [b, c], "mask": d, "names": ["x", "y"]}
    model = nn.Sequential(*(Block() for _ in range(TENSORS // 5)))
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, {rounds} rounds\n")
    print("| what | ratio (median) | quartiles | time |\n| --- | --- | --- | --- |")
    check, add = dsfix.check_tensors_device, lambda: a + b
    print(
        row("`check_tensors_device` of 4 tensors / `a + b` of 4 elements", lambda: check(a, b, c, d), add, 2000, rounds)
    )
    print(row("the same for a batch, a dict of tensors and lists", lambda: check(batch=batch), add, 2000, rounds))
    print(
        row(
            f"`placement_report` of {TENSORS} tensors / `list(model.named_parameters())`",
            lambda: dsfix.placement_report(model),
            lambda: list(model.named_parameters()),
            1,
            max(rounds // 5, 3),
        )
    )


if __name__ == "__main__":
    main()
