"""Ranks of one job, forked from this process after torch; writes the result of deepspeed.initialize on each.

Arguments: the output file, the kind of each rank (alike, skip=ID, other, without; comma-separated), and what they do:
train; or create the process group themselves and call init_distributed one by one, or on rank 0 only. OTHER_DSFIX is
the directory of a second dsfix.
"""

import json
import logging
import os
import socket
import sys
import traceback
from pathlib import Path

import torch

out, kinds, script = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]


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
    warnings = []
    logging.getLogger("dsfix").addHandler(Collector(warnings))
    result = {"error": "", "trained": False}
    try:
        if script == "train":
            deepspeed.init_distributed("gloo")
            torch.distributed.barrier()
        else:
            torch.distributed.init_process_group("gloo")
            if number and script == "by turns":
                torch.distributed.barrier()
            if not number or script == "by turns":
                deepspeed.init_distributed("gloo")
            if not number and script == "by turns":
                torch.distributed.barrier()
            torch.distributed.all_reduce(torch.ones(1))
            return
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
    finally:
        out.with_suffix(f".{number}").write_text(json.dumps({**result, "log": "\n".join(warnings)}))


class Collector(logging.Handler):
    """Keeps the warnings."""

    def __init__(self, kept):
        super().__init__(logging.WARNING)
        self.kept = kept

    def emit(self, record):
        self.kept.append(record.getMessage())


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ["LOCAL_SIZE"] = str(len(kinds))
for number in sorted(range(len(kinds)), key=lambda number: kinds[number] == "alike"):
    if kinds[number] == "alike":
        prepare("alike")  # once for all of these
    if not os.fork():
        try:
            rank(number, kinds[number], port)
        finally:
            sys.stderr.flush()
            os._exit(0)
for _ in kinds:
    os.wait()
seen = [out.with_suffix(f".{number}") for number in range(len(kinds))]
out.write_text(json.dumps([json.loads(each.read_text()) for each in seen]))
