"""The training of train.py with accelerate."""

import sys

import accelerate
import deepspeed
import train

accelerator = accelerate.Accelerator(gradient_accumulation_steps=train.MICRO_BATCHES)
model = train.new_model()
model, optimizer = accelerator.prepare(model, train.new_optimizer(model))
for step in range(train.STEPS):
    for number in range(train.MICRO_BATCHES):
        with accelerator.accumulate(model):
            accelerator.backward(train.loss_of(model, train.micro_batch(step, number, deepspeed.comm.get_rank())))
            optimizer.step()
            optimizer.zero_grad()
# without a GPU accelerate counts only one process
sys.exit(train.judge(accelerator.unwrap_model(model), deepspeed.comm.get_world_size()))
