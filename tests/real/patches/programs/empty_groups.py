"""Trains with empty parameter groups under each kind of scheduler; writes rates and parameters, and plain PyTorch's."""

import dsfix  # noqa: F401 isort: skip
import functools
import json
import sys
import warnings
from pathlib import Path

from dsfix.lab import Lab

lab = Lab()
torch = lab.torch
deepspeed = lab.deepspeed

from torch.optim import lr_scheduler  # noqa: E402

from dsfix.lab.models import MLP, regression_batch  # noqa: E402
from dsfix.lab.reference import largest_difference  # noqa: E402

RATES = (0.05, 0.2, 0.1, 0.02)  # of an empty group, two and another empty one
HIGHER = [2 * rate for rate in RATES]
STEPS = 6
warnings.filterwarnings("ignore", category=UserWarning, module="torch.optim")


class Own:
    """A user-written scheduler, independent of torch's."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]

    def step(self):
        self.steps += 1
        for group, rate in zip(self.optimizer.param_groups, self.base_lrs):
            group["lr"] = rate * 0.9**self.steps


def decayed(step, base):
    return base**step


SCHEDULERS = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(
        optimizer, [functools.partial(decayed, base=base) for base in (0.9, 0.8, 0.7, 0.6)]
    ),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, 4)],
        milestones=[2],
    ),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=0, min_lr=[rate / 4 for rate in RATES]
    ),
    "own": Own,
    "warmup": lambda optimizer: deepspeed.runtime.lr_schedules.WarmupLR(
        optimizer, [0.0] * len(RATES), HIGHER, warmup_num_steps=4
    ),
}


def parts(model):
    """SGD without parameters in its first and last group."""
    parameters = [], list(model.blocks.parameters()), list(model.head.parameters()), []
    groups = [{"params": part, "lr": rate} for part, rate in zip(parameters, RATES)]
    return torch.optim.SGD(groups, lr=1.0)


def stepped(scheduler):
    scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


def plain(kind):
    """Rates of the groups with parameters, step by step; the parameters; the scheduler, which it saved halfway."""
    model = MLP()
    optimizer = parts(model)
    scheduler = SCHEDULERS[kind](optimizer)
    rates = []
    for step in range(STEPS):
        rates.append([float(group["lr"]) for group in optimizer.param_groups if group["params"]])
        optimizer.zero_grad()
        model.loss(*regression_batch(rank=0, step=step)).backward()
        optimizer.step()
        stepped(scheduler)
        if step + 1 == STEPS // 2 and kind != "own":
            torch.save(scheduler.state_dict(), lab.tmp / f"{kind}.pt")
    return rates, {name: p.detach() for name, p in model.named_parameters()}, scheduler


def started(kind, stage, handed_over):
    optimizer = parts(model := MLP())
    scheduler = SCHEDULERS[kind](optimizer)
    batch = len(regression_batch(rank=0, step=0)[0])
    config = {"train_micro_batch_size_per_gpu": batch, "zero_optimization": {"stage": stage}}
    engine = lab.initialize(model, config, optimizer=optimizer, **({"lr_scheduler": scheduler} if handed_over else {}))
    return engine, scheduler, optimizer


def trained(kind, stage, handed_over):
    engine, scheduler, optimizer = started(kind, stage, handed_over)
    rates = []
    for step in range(STEPS):
        rates.append([float(rate) for rate in engine.get_lr()])
        inputs, targets = regression_batch(rank=0, step=step)
        engine.backward(torch.nn.functional.mse_loss(engine(inputs.to(lab.device)), targets.to(lab.device)))
        engine.step()
        if not handed_over:
            stepped(scheduler)
        if step + 1 == STEPS // 2 and handed_over:
            engine.save_checkpoint(str(lab.tmp / f"{kind}-{stage}"))
    return rates, lab.parameters(engine), scheduler, optimizer


def compared(kind, stage, handed_over):
    expected, parameters, reference = plain(kind)
    rates, after, scheduler, optimizer = trained(kind, stage, handed_over)
    last = [[] if kind == "own" else this.get_last_lr() for this in (scheduler, reference)]
    return {
        "rates": rates,
        "expected": expected,
        "difference": largest_difference(after, parameters).relative,
        "last": last[0],
        "expected last": last[1],
        "equal": scheduler.optimizer == optimizer,
    }


def resumed(kind, stage, checkpoint):
    """The rates after a checkpoint: of the engine, or a scheduler's state alone as it is without the patch."""
    expected, _, _ = plain(kind)
    engine, scheduler, _ = started(kind, stage, handed_over=True)
    if checkpoint:
        engine.load_checkpoint(str(lab.tmp / f"{kind}-{stage}"))
    else:
        state = torch.load(lab.tmp / f"{kind}.pt", weights_only=False)
        state["_last_lr"] = state["_last_lr"][1:3]  # of the remaining groups
        scheduler.load_state_dict(state)
    rates = []
    for _ in range(STEPS // 2, STEPS - 1):
        stepped(scheduler)
        rates.append([float(rate) for rate in engine.get_lr()])
    return {"rates": rates, "expected": expected[STEPS // 2 + 1 :]}


seen = {f"{kind}, stage 0": compared(kind, 0, False) for kind in SCHEDULERS}
seen.update({f"lambda, stage {stage}, handed over": compared("lambda", stage, True) for stage in (0, 2, 3)})
seen.update({f"lambda, stage {stage}, resumed": resumed("lambda", stage, True) for stage in (0, 2)})
seen["lambda, resumed from the state of one without the patch"] = resumed("lambda", 0, False)
Path(sys.argv[1], f"{lab.rank}.json").write_text(json.dumps(seen))
lab.close()
