"""What is around the training: profiler, monitor, launcher, elasticity, compression."""

from __future__ import annotations

import csv
import itertools
import math
import types
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from dsfix.lab.session import Lab
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public, without_reference

_NUMBERS = itertools.count()


@part("tools/flops profiler", "torch.utils.flop_counter", examples=60)
def _flops(lab: Lab, draw: Draw) -> None:
    profile = public("profiling.flops_profiler.profiler:get_model_profile")
    shapes = draw("matmul", (((3, 5), (5, 4)), ((3, 5), (5,)), ((3, 5), (2, 5, 4)), ((2, 3, 5), (5, 4))))
    a, b = (torch.ones(each) for each in shapes)
    rows, groups = draw.integer("rows", 1, 3), draw("groups", (1, 2))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 4, bias=False)
            self.conv = torch.nn.Conv2d(2, 4, 3, padding=1, groups=groups, bias=False)

        def forward(self, x: torch.Tensor) -> Any:
            return (
                self.linear(x),
                self.conv(x.new_ones(1, 2, 4, 4)),
                torch.matmul(a, b),
                torch.bmm(x[None], x.t()[None]),
            )

    net, x = Net(), torch.ones(rows, 6)
    with FlopCounterMode(display=False) as counted:
        net(x)
    wanted = counted.get_total_flops() + (30 if b.dim() == 1 else 0)  # it does not count a matrix times a vector
    flops, *_ = profile(net, args=[x], print_profile=False, as_string=False, warm_up=0)
    same(int(flops), wanted, "flops")


@part("tools/csv_monitor", "what was written, under one header", examples=30)
def _csv(lab: Lab, draw: Draw) -> None:
    kind = public("monitor.csv_monitor:csvMonitor")
    where, written = lab.tmp / f"csv{next(_NUMBERS)}", []
    config = types.SimpleNamespace(enabled=True, output_path=str(where), job_name="job")
    for process in range(draw.integer("processes", 1, 2)):
        monitor = kind(config)
        for step in range(draw.integer(f"steps of {process}", 1, 3)):
            monitor.write_events([("Train/loss", 0.5 * step, step)])
            written.append([str(step), str(0.5 * step)])
    with (where / "job" / "Train_loss.csv").open() as file:
        same(list(csv.reader(file)), [["step", "loss"], *written], "rows")


@part("tools/launcher filter", "its documentation: --include and --exclude divide the slots", examples=200)
def _filter(lab: Lab, draw: Draw) -> None:
    chosen = public("launcher.runner:parse_resource_filter")
    hosts = {f"worker-{number}": list(range(draw.integer(f"slots {number}", 1, 3))) for number in range(2)}
    named: dict[str, list[int]] = {}
    for host, slots in hosts.items():
        how = draw(host, ("all", "none", "some"))
        if how != "none":
            named[host] = slots if how == "all" else [slot for slot in slots if draw.flag(f"{host}:{slot}")] or slots
    draw.assume(bool(named))
    whole = draw.flag("whole hosts without slots")
    text = "@".join(
        host if whole and slots == hosts[host] else f"{host}:{','.join(map(str, slots))}"
        for host, slots in named.items()
    )
    same(dict(chosen(hosts, include_str=text)), named, "included")
    rest = {host: [slot for slot in slots if slot not in named.get(host, [])] for host, slots in hosts.items()}
    same(dict(chosen(hosts, exclude_str=text)), {host: slots for host, slots in rest.items() if slots}, "what is left")


@part("tools/elasticity", "its documentation: each number of GPUs divides the batch by a micro-batch", examples=100)
def _elastic(lab: Lab, draw: Draw) -> None:
    computed = public("elasticity:compute_elastic_config")
    sizes = sorted({draw.integer(f"micro-batch {number}", 1, 6) for number in range(draw.integer("sizes", 1, 3))})
    most, gpus = draw.integer("max_train_batch_size", 6, 200), draw.integer("max_gpus", 1, 40)
    config = {"enabled": True, "max_train_batch_size": most, "micro_batch_sizes": sizes, "min_gpus": 1}
    config |= {"max_gpus": gpus, "version": 0.1, "prefer_larger_batch": draw("prefer_larger_batch", (True, False))}
    batch, valid = computed({"elasticity": config}, lab.deepspeed.__version__)
    assert batch <= most, f"{batch} of at most {most}"
    wanted = [n for n in range(1, gpus + 1) if any(batch % (n * size) == 0 for size in sizes)]
    same(sorted(valid), wanted, f"numbers of GPUs for {batch}")


@part("tools/compression quantizers", "the nearest of 2^bits levels; nothing is not a number", examples=150)
def _quantized(lab: Lab, draw: Draw) -> None:
    kind, bits = draw("kind", ("SymQuantizer", "AsymQuantizer")), draw("bits", (4, 8))
    groups, scale = draw.integer("groups", 1, 2), draw("times", (1.0, 0.0))
    x = draw.tensor("x", (2 * groups, 4)) * scale
    found = public(f"compression.utils:{kind}").apply(x, bits, None, None, groups)
    rows = x.reshape(groups, -1)
    span = 2 * rows.abs().amax(1) if kind == "SymQuantizer" else rows.amax(1) - rows.amin(1)
    off = (found.reshape(groups, -1) - rows).abs().amax(1)
    assert not bool(found.isnan().any()), "nan"
    assert bool((off <= span / 2**bits * 1.01 + 1e-6).all()), (
        f"off by {off.tolist()} of levels {(span / 2**bits).tolist()}"
    )


@part("tools/compression TopKBinarizer", "torch.topk of the share that is kept", examples=60)
def _pruned(lab: Lab, draw: Draw) -> None:
    share, x = draw.number("share", 0, 1), draw.tensor("x", (3, 4))
    draw.assume(len(set(x.flatten().tolist())) == x.numel())
    found = public("compression.utils:TopKBinarizer").apply(x, share, False)
    wanted = torch.zeros(x.numel()).scatter(0, x.flatten().topk(math.ceil(share * x.numel())).indices, 1.0)
    same(found, wanted.view(x.shape), "mask")


without_reference(
    {
        "tools/autotuning": "what is fastest depends on the machine",
        "tools/comms logger, wall clock timers": "they measure time",
        "tools/env report": "it describes the machine",
        "zero/ZeRO++ quantized weights and gradients": "their kernels need a GPU",
        "zero/NVMe offload": "its operator has to be compiled",
        "engine/DeepCompile": "needs a GPU",
        "engine/init_inference with kernel injection": "its kernels need a GPU",
        "ops/sparse attention, evoformer attention, transformer kernels": "need a GPU",
    }
)


@part("tools/OnDevice", "its documentation: device and dtype within the context, and nothing afterwards", examples=20)
def _on_device(lab: Lab, draw: Draw) -> None:
    context, dtype = lab.deepspeed.OnDevice, draw("dtype", (torch.bfloat16, torch.float32))
    before = {name: getattr(torch, name) for name in ("empty", "zeros", "ones", "full")}, torch.Tensor.__new__
    try:
        with context(dtype=dtype, device="meta"):
            if draw.flag("another within"):
                with context(dtype=dtype, device="meta"):
                    torch.nn.Linear(2, 2)
            made = torch.nn.Linear(2, 2).weight
        same((str(made.device), made.dtype), ("meta", dtype), "within")
        after = torch.Tensor(2)
        same((str(after.device), after.dtype), ("cpu", torch.float32), "afterwards")
    finally:
        for name, function in before[0].items():
            setattr(torch, name, function)
        torch.Tensor.__new__ = before[1]
