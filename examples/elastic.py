"""The training of train.py; one worker dies in the first attempt, and torch's elastic agent restarts all of them."""

import os
import sys

import deepspeed
import train

FIRST_ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def dies_once(step):
    if FIRST_ATTEMPT and step == 1 and os.environ["RANK"] == "1":
        print("rank 1 dies", flush=True)
        os._exit(3)


deepspeed.init_distributed("gloo", verbose=False)
model = train.train(after_step=dies_once)
print(f"restarts: {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
sys.exit(train.judge(model, deepspeed.comm.get_world_size()))
