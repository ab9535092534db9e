"""The training of train.py in two Ray actors, each a rank.

Below `python -m dsfix run` the workers of a cluster started by `ray.init` have dsfix. Workers of a running cluster have
it if the job requests it: `python ray_train.py --hook`.
"""

import os
import sys

import ray

RANKS = 2


def import_dsfix():
    import dsfix  # noqa: F401


@ray.remote(num_cpus=0)
class Rank:
    def address(self):
        from torch.distributed.elastic.utils.distributed import get_free_port

        return ray.util.get_node_ip_address(), get_free_port()

    def train(self, rank, address, port):
        """Trains, and returns the exit status of this rank."""
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
        import deepspeed
        import train

        deepspeed.init_distributed("gloo", verbose=False)
        return train.judge(train.train(), RANKS)


hook = {"worker_process_setup_hook": import_dsfix} if "--hook" in sys.argv[1:] else {}
ray.init(address="local", num_cpus=RANKS, include_dashboard=False, runtime_env=hook)
ranks = [Rank.remote() for _ in range(RANKS)]
where = ray.get(ranks[0].address.remote())
sys.exit(max(ray.get([each.train.remote(number, *where) for number, each in enumerate(ranks)])))
