"""Ranks of one job, forked from this process after torch; writes the result of deepspeed.initialize on each.

Arguments: the output file, the kind of each rank (alike, skip=ID, other, without; comma-separated), and the time limit
of the process group in seconds, 0 for DeepSpeed's default. OTHER_DSFIX is the directory of another dsfix. The result of
a rank without dsfix is null if it did not end with the others.
"""

import json
import os
import signal
import socket
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch

out, kinds, limit = Path(sys.argv[1]), sys.argv[2].split(","), float(sys.argv[3])


def prepare(kind):
    """Imports what a rank of this kind imports."""
    if kind.startswith("skip="):
        os.environ["DSFIX_SKIP"] = kind[5:]
    if kind == "other":
        sys.path.insert(0, os.environ["OTHER_DSFIX"])
    if kind != "without":
        import dsfix  # noqa: F401
    import deepspeed  # noqa: F401


def rank(number, kind, port):
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": len(kinds), "LOCAL_SIZE": len(kinds)}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    prepare(kind)
    import deepspeed

    accelerator = deepspeed.accelerator.get_accelerator()
    accelerator._communication_backend_name = "gloo"
    # it would compile its shared-memory collectives
    accelerator.create_op_builder = lambda name, create=accelerator.create_op_builder: (
        None if name in ("ShareMemCommBuilder", "CCLCommBuilder") else create(name)
    )
    result = {"error": "", "trained": False}
    try:
        if limit:
            deepspeed.init_distributed("gloo", timeout=timedelta(seconds=limit))
        model = torch.nn.Linear(2, 1)
        config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
        engine = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())[0]
        engine.backward(engine(torch.ones(1, 2)).sum())
        engine.step()
        result["trained"] = True
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        if type(error).__name__ != "RankError":
            traceback.print_exc()
    out.with_suffix(f".{number}").write_text(json.dumps(result))


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ["LOCAL_SIZE"] = str(len(kinds))
children = {}
for number in sorted(range(len(kinds)), key=lambda number: kinds[number] == "alike"):
    if kinds[number] == "alike":
        prepare("alike")  # once for all of these
    child = os.fork()
    if not child:
        try:
            rank(number, kinds[number], port)
        finally:
            sys.stderr.flush()
            os._exit(0)
    children[child] = kinds[number]
while set(children.values()) - {"without"}:
    children.pop(os.wait()[0])
for child in children:  # a rank without dsfix may wait for the others until DeepSpeed's timeout
    os.kill(child, signal.SIGKILL)
seen = [out.with_suffix(f".{number}") for number in range(len(kinds))]
out.write_text(json.dumps([json.loads(each.read_text()) if each.exists() else None for each in seen]))
