"""A model dispatched by accelerate, in DistributedDataParallel on two ranks; writes the results."""

import dsfix  # noqa: F401 isort: skip
import json
import logging
import os
import sys
from pathlib import Path

from dsfix.lab import Lab

lab = Lab()
torch = lab.torch
torch.distributed.init_process_group("gloo")

from accelerate import dispatch_model  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from dsfix.lab.models import MLP  # noqa: E402

if lab.emulated:  # the CPU build of torch lacks the timer for these statistics
    torch.distributed.Logger.set_runtime_stats_and_log = lambda self: None

STEPS = 2
BLOCKS = 8
rank = lab.rank
out = Path(sys.argv[1])
said = []


class Listener(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


class Derived(DistributedDataParallel):
    def __init__(self, model, **options):
        super().__init__(model, **options)


logging.getLogger("dsfix").addHandler(Listener())


def over(*devices, **others):
    """A model with its blocks spread over these devices, the head on the last; `others` place other parts."""
    places = {f"blocks.{k}": devices[k * len(devices) // BLOCKS] for k in range(BLOCKS)}
    return dispatch_model(MLP(depth=BLOCKS), {**places, "head": devices[-1], **others})


def train(model, kind=DistributedDataParallel, **options):
    """Losses and parameters; the optimizer is created before DDP."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp = kind(model, **options)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * rank + step)
        loss = ddp(torch.randn(4, 16, generator=generator).to(lab.device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in model.parameters()]


def outcome(model, expected=None, **options):
    said.clear()
    try:
        seen = train(model, **options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "said": list(said)}
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    return {"equal": seen == expected, "devices": devices, "said": list(said)}


def cases():
    own = [rank]
    expected = train(MLP(depth=BLOCKS).to(lab.device), device_ids=own)
    yield "device_ids", outcome(over(0, 1), expected, device_ids=own)
    yield "subclass", outcome(over(0, 1), expected, kind=Derived, device_ids=[torch.device("cuda", rank)])
    yield "offloaded", outcome(over(rank, head="cpu"))
    other = dispatch_model(MLP(depth=BLOCKS), {"": 1 - rank}, force_hooks=True)
    yield "another device", outcome(other, expected, device_ids=own)
    yield "too few devices", outcome(over(*range(8)), expected)
    yield "devices of its own", outcome(over(rank, rank + 2), expected)


found = dict(cases())
Path(out, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
lab.close()
os._exit(0)  # threads of a failed training sometimes abort the interpreter's shutdown
