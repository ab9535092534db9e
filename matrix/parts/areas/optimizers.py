"""Muon, by the engine, as its author describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dsfix.lab.kernels import provide_cpu_adam, provide_fused_adam
from dsfix.lab.session import Lab
from dsfix.versions import satisfies
from matrix.parts.areas.engine import Job, Net
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import part, public, without_reference

_NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315


def _orthogonal(G: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Muon's five iterations, in the matrix's own precision."""
    a, b, c = _NEWTON_SCHULZ
    x = G.float()
    x = x.mT if (high := x.size(-2) > x.size(-1)) else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if high else x


class Muon(torch.optim.Optimizer):
    """Keller Jordan's Muon for matrices, Adam for the rest."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
                state, decay = self.state[weight], group["weight_decay"]
                first = state.setdefault("first", torch.zeros_like(weight))
                if group["use_muon"]:
                    first.lerp_(gradient, 1 - group["momentum"])
                    update = _orthogonal(gradient.lerp(first, group["momentum"]))
                    update *= max(1.0, weight.size(0) / weight.size(1)) ** 0.5
                else:
                    gradient = gradient if group["decoupled"] else gradient + decay * weight
                    decay = decay if group["decoupled"] else 0.0
                    second, (beta1, beta2) = state.setdefault("second", torch.zeros_like(weight)), group["betas"]
                    state["step"] = step = state.get("step", 0) + 1
                    first.lerp_(gradient, 1 - beta1)
                    second.lerp_(gradient.square(), 1 - beta2)
                    update = first / (1 - beta1**step) / ((second / (1 - beta2**step)).sqrt() + group["eps"])
                weight.mul_(1 - group["lr"] * decay).sub_(group["lr"] * update)


class _Net(Net):
    """With an embedding, which Adam trains."""

    def __init__(self, scalar: bool = False) -> None:
        super().__init__(scalar)
        self.embed = torch.nn.Embedding(4, 6)

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        return super().forward(x, extra) + self.embed.weight[:2].mean(0)


class _Drawn:
    """Draws what a job needs; the ZeRO optimizers clip Muon's update instead of the gradient."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __call__(self, name: str, values: Sequence[Any]) -> Any:
        return 0.0 if name == "clipping" and self.draw.drawn["stage"] else self.draw(name, values)

    def flag(self, name: str) -> bool:
        return self.draw.flag(name)


class _Job(Job):
    def __init__(self, lab: Lab, draw: Draw) -> None:
        self.options: dict[str, Any] = {
            "lr": 0.05,
            "momentum": draw("momentum", (0.95, 0.5)),
            "weight_decay": draw("weight_decay", (0.0, 0.1)),
            "betas": [0.9, 0.8],
            "eps": 1e-2,
            **{name: value for name, value in (("muon_lr", 0.03), ("adam_lr", 0.07)) if draw.flag(name)},
        }
        given = dict(self.options, ns_method=draw("ns_method", ("gram", "standard")))
        if hasattr(public("runtime.engine:DeepSpeedEngine"), "get_optimizer_configuration"):
            for name in "torch_adam", "adam_w_mode":
                given[name] = self.options[name] = draw(name, (True, False))
        self.scatter = draw.flag("reduce_scatter")
        # before, ZeRO-3 gathers matrices of different shapes at once, which gloo refuses, and has faults of its own
        stages = (0, 1, 2, 3) if satisfies(">=0.19.8", lab.deepspeed.__version__) else (0, 1, 2)
        optimizer = {"type": "Muon", "params": given}
        super().__init__(lab, _Drawn(draw), stages, optimizer=optimizer)  # type: ignore[arg-type]

    def made(self) -> Any:
        if self.stage:
            self.config["zero_optimization"]["reduce_scatter"] = self.scatter and self.stage < 3  # refused by ZeRO-3
        return super().made()

    def _plain(self) -> tuple[Net, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model, groups = _Net(self.scalar), []
        given = self._given(model)
        for group in given if self.groups else [{"params": given}]:
            for use_muon, name in (True, "muon_lr"), (False, "adam_lr"):
                weights = {each: name for name, each in model.named_parameters()}
                own = [p for p in group["params"] if (p.ndim > 1 and "embed" not in weights[p]) is use_muon]
                rate = group.get("lr", self.options.get(name, self.options["lr"]))
                decoupled = self.options.get("adam_w_mode", True)
                options = {**self.options, "lr": rate, "decoupled": decoupled, "use_muon": use_muon}
                groups += [{"params": own, **options}] if own else []
        return model, Muon(groups, {})


@part("optimizers/Muon", "its formula, on one rank in plain PyTorch", examples=19, ranks=2, device="cuda")
def _muon(lab: Lab, draw: Draw) -> None:
    provide_fused_adam(lab)
    provide_cpu_adam(lab)
    public("runtime.zero.muon.original_muon:Muon")
    import deepspeed.runtime.zero.muon.original_muon as module

    for name in "zeropower_via_newtonschulz5", "zeropower_via_gram_newtonschulz":
        setattr(module, name, _orthogonal)  # half precision has an error of its own: the part below
    job = _Job(lab, draw)
    before, resumed = draw.integer("steps before", 1, 2), draw.flag("resumed")
    rate = draw("another rate", (None, 0.01))
    job.train(before)
    if resumed:
        job.engine.save_checkpoint(str(job.where), "x")
        torch.distributed.barrier()
        job.engine = job.made()
        job.engine.load_checkpoint(str(job.where), "x")
    if rate is not None:
        for group in (*job.engine.optimizer.param_groups, *job.optimizer.param_groups):
            group["lr"] = rate
    job.train(2)
    job.check()


@part("optimizers/Newton-Schulz iteration", "its formula in fp32", examples=60)
def _iteration(lab: Lab, draw: Draw) -> None:
    name = draw("method", ("newtonschulz5", "gram_newtonschulz"))
    function = public(f"runtime.zero.muon.original_muon:zeropower_via_{name}")
    high, wide = draw.integer("rows", 1, 6), draw.integer("columns", 1, 6)
    generator = torch.Generator().manual_seed(draw.integer("seed", 0, 3))
    shape = (*draw("matrices", ((), (2,))), high, wide)
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=generator), full_matrices=False)
    scale = draw("scale", (1.0, 1e-3, 1e3))
    given = u @ torch.diag(torch.linspace(1.0, 0.5, min(high, wide))) @ v * scale
    dtype = draw("dtype", (torch.float32, torch.bfloat16))
    given = given.to(dtype)
    same(function(given.clone(), 5).float(), _orthogonal(given), "orthogonal", 0.12)


without_reference(
    {
        "optimizers/FusedLamb, FusedLion": "their kernels need a GPU",
        "optimizers/DeepSpeedCPULion, DeepSpeedCPUAdagrad": "their operators have to be compiled",
    }
)
