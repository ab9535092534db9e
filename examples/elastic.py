"""The same training, in which one worker dies on the first try: torch's elastic agent starts all of them again."""

import os
import sys

import deepspeed
import train

FIRST_TRY = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def dies_once(step):
    if FIRST_TRY and step == 1 and os.environ["RANK"] == "1":
        print("rank 1 dies", flush=True)
        os._exit(3)


deepspeed.init_distributed("gloo", verbose=False)
model = train.train(after_step=dies_once)
print(f"restarts: {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
sys.exit(train.judge(model, deepspeed.comm.get_world_size()))
