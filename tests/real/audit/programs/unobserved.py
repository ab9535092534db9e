"""Trains a plan with and without an observer and prints whether the results are bitwise equal. unobserved.py PLAN"""

import json
import os
import sys

from dsfix.audit import rank
from dsfix.audit.plan import Plan
from dsfix.lab.session import Lab

plan = Plan.load(sys.argv[1])
with Lab("cuda") as lab:
    assert lab.deepspeed
    import torch

    rank.provide_kernels(lab)
    results = []
    for observed in (True, False):
        trainer = rank.Trainer(plan, lab)
        engine = trainer.engine()
        if observed:
            observer = trainer.observer(engine)
            observer.state()
        losses = []
        for number in range(plan.steps):
            if observed:
                observer.start()
            losses.append(trainer.step(engine, number))
            if observed:
                observer.state(losses[-1])
        if observed:
            observer.close()
        results.append((losses, lab.parameters(engine)))
    (losses, parameters), (others, wanted) = results
    same = losses == others and all(torch.equal(parameters[name], wanted[name]) for name in wanted)
    moved = len(set(losses)) == plan.steps
    print(json.dumps({"same": same, "moved": moved}), flush=True)
os._exit(0)  # a regular shutdown while engines are alive once aborted in a thread of torch
