"""The training of train.py in a process spawned by multiprocessing, with forked and spawned DataLoader workers.

Each worker also returns the number of patches applied in its process.
"""

import os
import sys

import deepspeed
import torch
import train
from torch import multiprocessing
from torch.distributed.elastic.utils.distributed import get_free_port

KINDS = ("fork", "spawn")


def patches():
    """The number of dsfix patches applied in this process."""
    dsfix = sys.modules.get("dsfix")
    return sum(each.outcome.value == "applied" for each in dsfix.report()) if dsfix else 0


class Batches(torch.utils.data.Dataset):
    """All micro-batches of rank 0."""

    def __len__(self):
        return train.STEPS * train.MICRO_BATCHES

    def __getitem__(self, index):
        return *train.micro_batch(*divmod(index, train.MICRO_BATCHES), 0), patches()


def rank_0(port):
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    deepspeed.init_distributed("gloo", verbose=False)
    loaders = [
        iter(torch.utils.data.DataLoader(Batches(), None, num_workers=1, multiprocessing_context=kind))
        for kind in KINDS
    ]
    seen = {"rank": {patches()}, "fork": set(), "spawn": set()}

    def from_workers(step, number, rank):
        for kind, loader in zip(KINDS, loaders):
            inputs, targets, applied = next(loader)
            seen[kind].add(applied)
        return inputs, targets

    status = train.judge(train.train(from_workers), 1)
    print("patches applied:", *(f"{kind} {sorted(numbers)}" for kind, numbers in seen.items()), flush=True)
    sys.exit(status)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=rank_0, args=(get_free_port(),))
    process.start()
    process.join()
    sys.exit(process.exitcode)
