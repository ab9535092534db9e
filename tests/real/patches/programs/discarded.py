"""Discards gradients that DeepSpeed keeps elsewhere in many ways; writes how far the weights are from plain PyTorch's.

Arguments: a directory, the ZeRO stage. ZeRO-3: two losses of one forward pass; ZeRO-2: two micro-batches.
"""

import dsfix  # noqa: F401 isort: skip
import copy
import json
import sys
from pathlib import Path

from dsfix.lab import Lab

RATE = 0.1
out, stage = Path(sys.argv[1]), int(sys.argv[2])

lab = Lab()
torch = lab.torch
_ = lab.deepspeed

from dsfix.lab.models import MLP, regression_batch  # noqa: E402
from dsfix.lab.reference import largest_difference  # noqa: E402


def to_none(model):
    for parameter in model.parameters():
        parameter.grad = None


def to_none_if_there(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = None


def to_zero_if_there(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def deleted(model):
    for parameter in model.parameters():
        del parameter.grad


def by_own_optimizer(model):
    current[-1].zero_grad()


def of_the_head(model):
    model.head.zero_grad(set_to_none=False)


def nothing(model):
    pass


def clipped(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))


def looked_at(model):
    return [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]


def perhaps(model, bad=False):
    for parameter in model.parameters():
        if parameter.grad is not None and bad:
            parameter.grad = None


WAYS = {
    "module": lambda model: model.zero_grad(),
    "module, to zero": lambda model: model.zero_grad(set_to_none=False),
    **{each.__name__: each for each in (to_none, to_none_if_there, to_zero_if_there, deleted)},
    **{each.__name__: each for each in (by_own_optimizer, of_the_head, nothing, clipped, looked_at, perhaps)},
}


def trained(model, backward, step, way):
    """Two steps. backward: of a loss, and whether the graph is needed again."""
    module = getattr(model, "module", model)
    for number in range(2):
        batches = [[each.to(lab.device) for each in regression_batch(0, 2 * number + micro)] for micro in range(2)]
        if stage == 3:
            output = model(batches[0][0])
            backward(output.square().mean(), True)
            way(module)
            backward(torch.nn.functional.mse_loss(output, batches[0][1]), False)
            step()
        else:
            for micro, (inputs, targets) in enumerate(batches):
                backward(torch.nn.functional.mse_loss(model(inputs), targets), False)
                if micro == 0:
                    way(module)
                step()


def plain(way):
    model = copy.deepcopy(INITIAL).to(lab.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    current.append(optimizer)
    passes = 1 if stage == 3 else 2
    done = 0

    def step():
        nonlocal done
        done += 1
        if done % passes == 0:
            optimizer.step()
            optimizer.zero_grad()

    trained(model, lambda loss, again: (loss / passes).backward(retain_graph=again), step, way)
    return {name: each.detach().cpu() for name, each in model.named_parameters()}


def with_deepspeed(way):
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1 if stage == 3 else 2,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": {"stage": stage},
    }
    model = copy.deepcopy(INITIAL)
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    current.append(engine.optimizer.optimizer)
    trained(engine, lambda loss, again: engine.backward(loss, retain_graph=again), engine.step, way)
    return lab.parameters(engine)


current = []  # the last is the torch optimizer of the model in training
INITIAL = MLP()
last = plain(to_none)
written = {}
for name, way in WAYS.items():
    got = with_deepspeed(way)
    written[name] = [largest_difference(got, plain(way)).relative, largest_difference(got, last).relative]
(out / "0.json").write_text(json.dumps(written))
lab.close()
