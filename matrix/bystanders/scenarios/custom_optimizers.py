"""Optimizers that are not elementwise, or whose rate is set from the first step on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from matrix.bystanders.scenario import Job, scenario, settings

_BLOCK = 16
_ALONE: Any = {"stage": "0", "optimizer": ("SGD",), "pinned": [{}, {"precision": "bf16"}, {"precision": "fp16"}]}

# ZeRO gives an optimizer parts of what all parameters are joined to: plain PyTorch computes something else.
# Left out is what patches make right: several micro-batches, fp32 accumulation in bf16, unused parameters.
_PARTS: Any = {
    "stage": "123",
    "precision": ("fp32", "bf16", "fp16"),
    "accumulation": ("1",),
    "optimizer": ("SGD",),
    "reference": False,
    "pinned": [{"stage": "2"}, {"stage": "3"}],
}
_WHOLE: Any = {"stage": "1", "precision": ("bf16, fp32 accumulation",), "optimizer": ("SGD",)}


def _lars(torch: Any, weight: Any, gradient: Any, state: dict[str, Any]) -> None:
    """A rate for each parameter, by the norms of its weights and gradient."""
    norm = gradient.norm()
    ratio = torch.where(norm > 0, weight.norm() / norm.clamp(min=1e-12), torch.ones_like(norm))
    state["moved"] = 0.9 * state.get("moved", 0.0) + ratio * gradient
    weight.sub_(0.02 * state["moved"])


def _shampoo(torch: Any, weight: Any, gradient: Any, state: dict[str, Any]) -> None:
    """The gradients of matrices are scaled by roots of sums over rows and over columns."""

    def root(matrix: Any) -> Any:
        values, vectors = torch.linalg.eigh(matrix)
        return (vectors * values.clamp(min=1e-6) ** -0.25) @ vectors.T

    held = gradient.detach().cpu()
    held = held if held.dim() == 2 else held.reshape(1, -1)[:, :1]
    left = state["left"] = state.get("left", 0.1 * torch.eye(held.shape[0])) + held @ held.T
    right = state["right"] = state.get("right", 0.1 * torch.eye(held.shape[1])) + held.T @ held
    if gradient.dim() == 2:
        weight.sub_(0.02 * (root(left) @ held @ root(right)).to(weight.device))
    else:
        weight.sub_(0.02 * gradient * float(right.rsqrt()))


def _in_blocks(torch: Any, weight: Any, gradient: Any, state: dict[str, Any]) -> None:
    """The momentum is kept in 8 bits, with a scale for each block."""
    size = weight.numel()
    moved = torch.nn.functional.pad(gradient.reshape(-1), (0, -size % _BLOCK)).view(-1, _BLOCK)
    if state:
        moved = moved + 0.9 * state["bits"].to(moved.dtype) * state["scales"]
    state["scales"] = moved.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    state["bits"] = (moved / state["scales"]).round().to(torch.int8)
    weight.sub_(0.05 * moved.reshape(-1)[:size].view_as(weight))


def _schedule_free(torch: Any, weight: Any, gradient: Any, state: dict[str, Any]) -> None:
    """Trains between a fast point and the average of its past; `_swap` puts the average into the weights."""
    fast = state.setdefault("fast", weight.detach().clone())
    state["steps"] = state.get("steps", 0) + 1
    share = 1 / state["steps"]
    weight.lerp_(fast, share)
    weight.add_(gradient, alpha=0.05 * (0.9 * (1 - share) - 1))
    fast.sub_(gradient, alpha=0.05)


def _swap(client: Any, averaged: bool) -> None:
    for group in client.param_groups:
        for weight in group["params"]:
            if "fast" in client.state[weight]:
                weight.data.lerp_(client.state[weight]["fast"], 1 - 1 / 0.9 if averaged else 1 - 0.9)


def _made(job: Job, update: Callable[..., None], given: list[Any]) -> Any:
    class Client(job.torch.optim.Optimizer):  # type: ignore[name-defined,misc]
        def step(self, closure: Any = None) -> None:
            with job.torch.no_grad():
                for group in self.param_groups:
                    for weight in group["params"]:
                        if weight.grad is not None:
                            update(job.torch, weight, weight.grad, self.state[weight])

    return Client(given, {})


def _train(job: Job, make: Callable[[list[Any]], Any], swap: bool = False, parts: bool = False) -> None:
    """Two groups; the second's parameters are not used in step 1. swap: the average is put in place and back.

    parts: all parameters are used, and none has to be padded, by numbers that are not initialized.
    """
    clients: list[Any] = []

    def kept(given: list[Any]) -> Any:
        clients.append(make(given))
        return clients[-1]

    model = job.Branches()
    if parts:
        for part in (model.first, model.second):
            part.head = job.torch.nn.Linear(16, 1, bias=False)
    groups = [{"params": list(part.parameters())} for part in (model.first, model.second)]
    engine = job.engine(model, groups, optimizer=kept)
    for step in range(4):
        job.train(engine, step, lambda batch, step=step: job.loss(engine, batch, parts or step != 1))
        if swap:
            _swap(clients[0], averaged=True)
            _swap(clients[0], averaged=False)


@scenario("LARS, with a rate for each parameter", **_ALONE)
def lars(job: Job) -> None:
    _train(job, functools.partial(_made, job, _lars))


@scenario("LARS, with a rate for each parameter, on ZeRO's parts of parameters", **_PARTS)
def lars_of_parts(job: Job) -> None:
    _train(job, functools.partial(_made, job, _lars), parts=True)


# its first steps are made of signs, which bf16's rounding changes
@scenario("torch's Adafactor", **{**_ALONE, "precision": ("fp32", "fp16"), "pinned": [{}, {"precision": "fp16"}]})
def adafactor(job: Job) -> None:
    _train(job, lambda given: job.torch.optim.Adafactor(given, lr=0.02))


@scenario("torch's Adafactor, on ZeRO's parts of parameters", **_PARTS)
def adafactor_of_parts(job: Job) -> None:
    _train(job, lambda given: job.torch.optim.Adafactor(given, lr=0.02), parts=True)


@scenario("an optimizer like Shampoo", **_ALONE)
def shampoo(job: Job) -> None:
    _train(job, functools.partial(_made, job, _shampoo))


@scenario("an optimizer like Shampoo, on ZeRO's parts of parameters", **_PARTS)
def shampoo_of_parts(job: Job) -> None:
    _train(job, functools.partial(_made, job, _shampoo), parts=True)


@scenario("a momentum that is kept in 8 bits, in blocks", **_ALONE)
def in_blocks(job: Job) -> None:
    _train(job, functools.partial(_made, job, _in_blocks))


@scenario("a momentum that is kept in 8 bits, in blocks, on ZeRO's parts of parameters", **_PARTS)
def in_blocks_of_parts(job: Job) -> None:
    _train(job, functools.partial(_made, job, _in_blocks), parts=True)


@scenario("a schedule-free optimizer, whose average is put into the weights and taken out", **_ALONE)
def schedule_free(job: Job) -> None:
    _train(job, functools.partial(_made, job, _schedule_free), swap=True)


@scenario("a schedule-free optimizer, on ZeRO's parts of parameters", **_PARTS)
def schedule_free_of_parts(job: Job) -> None:
    _train(job, functools.partial(_made, job, _schedule_free), swap=True, parts=True)


def _matrices(job: Job) -> Any:
    """Without biases, and with few rows: all of torch's Muon's singular values are far from rounding."""
    job.torch.manual_seed(0)
    linear = job.torch.nn.Linear
    return job.model(
        lambda self, x: self.head(self.body(x).tanh()), body=linear(16, 4, bias=False), head=linear(4, 1, bias=False)
    )


@scenario("torch's Muon", works_around=("muon_without_zero",), **{**_ALONE, "ranks": ("1", "2")})
def torch_muon(job: Job) -> None:
    engine = job.engine(_matrices(job), optimizer=lambda given: job.torch.optim.Muon(given, lr=0.02))
    job.steps(engine, range(3))


# where dsfix has nothing partitioned for them, and DeepSpeed neither: plain PyTorch is the reference
@scenario("LARS in bf16 with fp32 accumulation and ZeRO-1, which this release does not apply")
@settings(pinned=[{"stage": "1", "precision": "bf16, fp32 accumulation"}], release="0.18.3", **_WHOLE)
def lars_unpartitioned(job: Job) -> None:
    _train(job, functools.partial(_made, job, _lars))


@scenario("a subclass of AdamW in bf16 with fp32 accumulation and ZeRO-1, which this release does not apply")
@settings(pinned=[{"stage": "1", "precision": "bf16, fp32 accumulation", "ranks": "1"}], release="0.18.3", **_WHOLE)
def subclass_unpartitioned(job: Job) -> None:
    class Clipped(job.torch.optim.AdamW):  # type: ignore[name-defined,misc]
        """Clips the gradient of each parameter by itself."""

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    job.torch.nn.utils.clip_grad_norm_([weight], 0.05)
            super().step(closure)

    _train(job, lambda given: Clipped(given, lr=0.01, eps=1e-2))


_PINNED = [{"stage": "1", "ranks": "1"}, {"stage": "3"}, {"stage": "2", "offload": "optimizer"}]
_FITS: Any = {"precision": ("fp32",), "optimizer": ("SGD",), "clipping": ("off",)}


@scenario("an optimizer with a rate for each element, which begins with the group's", pinned=_PINNED, **_FITS)
def rates_of_elements(job: Job) -> None:
    class Rates(job.torch.optim.Optimizer):  # type: ignore[name-defined,misc]
        """A rate grows with a gradient of the sign of the last one, and shrinks otherwise."""

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is None:
                        continue
                    gradient, state = weight.grad, self.state[weight]
                    if not state:
                        state["rates"] = job.torch.full_like(weight, group["lr"])
                        state["last"] = job.torch.zeros_like(weight)
                    state["rates"].mul_(1 + 0.2 * (gradient * state["last"]).sign())
                    state["last"].copy_(gradient)
                    with job.torch.no_grad():
                        weight.sub_(state["rates"] * (gradient + group["decay"] * weight))

    engine = job.engine(job.MLP(), optimizer=lambda given: Rates(given, {"lr": 0.05, "decay": 0.1}))
    job.steps(engine, range(3))


# DeepSpeed replaces it by torch's own, with ZeRO
@scenario("a subclass of torch's Adagrad with a momentum")
@settings(pinned=_PINNED[::2], reference=False, stage="012", **{**_FITS, "accumulation": ("1",)})
def own_adagrad(job: Job) -> None:
    class Adagrad(job.torch.optim.Adagrad):  # type: ignore[name-defined,misc]
        def __init__(self, given: Any, **options: Any) -> None:
            super().__init__(given, **options)
            for group in self.param_groups:
                for weight in group["params"]:
                    self.state[weight]["moved"] = job.torch.zeros_like(weight)

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        moved = self.state[weight]["moved"].mul_(0.9).add_(weight.grad)
                        weight.grad.copy_(moved)
            super().step()

    engine = job.engine(job.MLP(), optimizer=lambda given: Adagrad(given, lr=0.01))
    job.steps(engine, range(3))
