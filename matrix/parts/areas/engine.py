"""The engine: initialize, its optimizers, methods, files and pipelines, as plain PyTorch and as identities."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsfix.audit.trial import trial
from dsfix.lab.kernels import provide_cpu_adam, provide_fused_adam
from dsfix.lab.session import Lab
from matrix.parts import space
from matrix.parts.comparing import same
from matrix.parts.drawing import Draw
from matrix.parts.part import Absent, part, public

_NUMBERS = itertools.count()
_ADAM = {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-2, "weight_decay": 0.1}


class Net(torch.nn.Module):
    """With what models have: a scalar, a shared weight, a frozen one, buffers, a module that a batch may leave out."""

    def __init__(self, scalar: bool = False) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 5), torch.nn.Linear(5, 6)
        self.frozen, self.extra = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.factor = torch.nn.Parameter(torch.tensor(1.5 if scalar else [1.5]))
        self.frozen.requires_grad_(False)
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        y = self.second(torch.relu(self.first(self.frozen(x)))) * self.factor
        return self.extra(y) if extra else y


class Job:
    """An engine, and the same training in plain PyTorch. Weights after both are compared by `check`."""

    def __init__(
        self, lab: Lab, draw: Draw, stages: tuple[int, ...] = (0, 1, 2, 3), offload: bool = True, **config: Any
    ) -> None:
        self.lab, self.draw = lab, draw
        self.stage = draw("stage", stages)
        self.accumulation = draw("accumulation", (1, 2))
        self.clip = draw("clipping", (0.0, 0.1))
        # zero/clip_grad_norm_ shows what a scalar does to it
        self.scalar = (self.stage > 0 or not self.clip) and draw.flag("a scalar parameter")
        self.where = lab.tmp / f"job{next(_NUMBERS)}"
        zero: dict[str, Any] = {"stage": self.stage} if self.stage else {}
        if self.stage and offload and draw.flag("offload"):
            zero["offload_optimizer"] = {"device": "cpu"}
        if self.stage == 3:
            zero["stage3_param_persistence_threshold"] = draw("persistence", (0, 100000))
            zero["sub_group_size"] = draw("sub_group_size", (1_000_000_000, 40))
        self.config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": self.clip,
            "optimizer": {"type": "AdamW", "params": {**_ADAM, "torch_adam": True}},
            **({"zero_optimization": zero} if zero else {}),
            **config,
        }
        self.groups = draw.flag("two groups")
        self.plain, self.optimizer = self._plain()
        self.engine = self.made()
        self.step = 0

    def _plain(self) -> tuple[Net, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = Net(self.scalar)
        return model, torch.optim.AdamW(self._given(model), **{**_ADAM, "betas": (0.9, 0.95)})

    def _given(self, model: torch.nn.Module) -> Any:
        weights = [each for each in model.parameters() if each.requires_grad]
        return [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.02}] if self.groups else weights

    def made(self) -> Any:
        model, _ = self._plain()
        return self.lab.initialize(model, copy.deepcopy(self.config), model_parameters=self._given(model))

    def batches(self) -> list[list[torch.Tensor]]:
        """By micro-batch and rank."""
        generator = torch.Generator().manual_seed(100 + self.step)
        return [[torch.randn(2, 6, generator=generator) for _ in range(2)] for _ in range(self.accumulation)]

    def backward(self) -> None:
        """All micro-batches of a step, in both trainings."""
        batches = self.batches()
        self.optimizer.zero_grad()
        torch.stack([self.plain(x).pow(2).mean() for ranks in batches for x in ranks]).mean().backward()
        for number, ranks in enumerate(batches):
            loss = self.engine(ranks[self.lab.rank].to(self.lab.device)).pow(2).mean()
            self.engine.backward(loss)
            if number < len(batches) - 1:
                self.engine.step()

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.backward()
            self.update()

    def update(self) -> None:
        self.engine.step()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.plain.parameters(), self.clip)
        self.optimizer.step()
        self.step += 1

    def check(self, what: str = "weights", engine: Any = None) -> None:
        wanted = {name: each.detach() for name, each in self.plain.named_parameters()}
        same(self.lab.parameters(engine or self.engine), wanted, what, 1e-3)


def engine(name: str, reference: str, **options: Any) -> Callable[[Callable[[Lab, Draw], None]], Any]:
    return part(f"engine/{name}", reference, **{"examples": 12, "ranks": 2, "device": "cuda", **options})


@engine("a call between steps", "the job without the call")
def _between(lab: Lab, draw: Draw) -> None:
    job = Job(lab, draw)
    job.train(draw.integer("steps before", 0, 1))
    x = torch.ones(2, 6, device=lab.device)
    calls: dict[str, Callable[[], Any]] = {
        "save_checkpoint": lambda: job.engine.save_checkpoint(str(job.where), "between"),
        "save_16bit_model": lambda: job.engine.save_16bit_model(str(job.where / "16bit")),
        "module_state_dict": lambda: job.engine.module_state_dict(),
        "eval": lambda: (job.engine.eval(), job.engine(x), job.engine.train()),
        "no_grad": lambda: _without_gradient(job, x),
        "parameters": lambda: lab.parameters(job.engine),
        "zero_grad": lambda: job.engine.zero_grad(),
        "get": lambda: (job.engine.get_lr(), job.engine.get_mom(), job.engine.get_global_grad_norm()),
        "save and load": lambda: (
            job.engine.save_checkpoint(str(job.where), "between"),
            job.engine.load_checkpoint(str(job.where), "between"),
        ),
        "empty_partition_cache": lambda: job.stage == 3 and job.engine.empty_partition_cache(),
    }
    inside = draw.flag("before the step")
    name = draw("call", sorted(set(calls) - ({"zero_grad", "save and load"} if inside else set())))
    if inside:
        job.backward()
        calls[name]()
        job.update()
    else:
        calls[name]()
    job.train(2)
    job.check()


def _without_gradient(job: Job, x: torch.Tensor) -> None:
    with torch.no_grad():
        one = job.engine(x)
    with torch.no_grad():
        same(job.engine(x).cpu(), one.cpu(), "a second evaluation")
        same(one.cpu(), job.plain(x.cpu()), "an evaluation", 1e-3)


@engine("save_checkpoint", "the job that was saved")
def _saved(lab: Lab, draw: Draw) -> None:
    job = Job(lab, draw)
    job.train(draw.integer("steps before", 1, 2))
    tag, state = draw("tag", (None, "a")), draw("client_state", ({}, {"epoch": 3, "text": "x"}))
    job.engine.save_checkpoint(
        str(job.where), tag, client_state=dict(state), save_latest=(latest := draw.flag("latest"))
    )
    torch.distributed.barrier()
    names = ("load_optimizer_states", "load_lr_scheduler_states", "load_module_strict")
    options = {name: draw(name, (True, False)) for name in names}
    other = job.made()
    path, client = other.load_checkpoint(str(job.where), tag if latest or tag else f"global_step{job.step}", **options)
    assert path is not None, "nothing was loaded"
    same({name: client.get(name) for name in state}, state, "client_state")
    job.check("loaded weights", other)
    if options["load_optimizer_states"]:
        job.engine = other
        job.train(2)
        job.check("weights after going on")


@engine("zero_to_fp32", "the weights of the engine", examples=8)
def _converted(lab: Lab, draw: Draw) -> None:
    job = Job(lab, draw, stages=(1, 2, 3))
    job.train(1)
    exclude = draw.flag("exclude_frozen_parameters")
    where = str(job.where)
    job.engine.save_checkpoint(where, "x")
    torch.distributed.barrier()
    wanted = {k: v.detach() for k, v in job.plain.state_dict().items()}
    if exclude:
        wanted = {k: v for k, v in wanted.items() if not k.startswith("frozen.")}
    lazy = draw.flag("lazy_mode")
    options = {"exclude_frozen_parameters": exclude, **({"lazy_mode": True} if lazy else {})}
    function = public("utils.zero_to_fp32:get_fp32_state_dict_from_zero_checkpoint")
    if lazy and "lazy_mode" not in function.__code__.co_varnames:
        draw.assume(False)
    got = function(where, draw("tag", ("x", None)), **options)
    got = {k: torch.as_tensor(v.contiguous() if lazy and hasattr(v, "contiguous") else v) for k, v in got.items()}
    same({k: v.to(wanted[k].dtype) for k, v in got.items() if k in wanted}, wanted, "state dict", 1e-3)
    if lab.rank == 0:
        model, _ = job._plain()
        public("utils.zero_to_fp32:load_state_dict_from_zero_checkpoint")(model, where, "x")
        same({k: v.detach() for k, v in model.named_parameters()}, dict(job.plain.named_parameters()), "model", 1e-3)


@engine("GatheredParameters", "what the rank that changes them wrote", examples=15)
def _gathered(lab: Lab, draw: Draw) -> None:
    job = Job(lab, draw, stages=(3,))
    gathered = lab.deepspeed.zero.GatheredParameters
    weights = dict(job.engine.module.named_parameters())
    names = [name for name in weights if draw.flag(f"gather {name}")]
    given = draw("given as", ("list", "iterator", "module"))
    rank = draw("modifier_rank", (None, 0, 1))
    params: Any = [weights[name] for name in names]
    params = iter(params) if given == "iterator" else job.engine.module.first if given == "module" else params
    names = ["first.weight", "first.bias"] if given == "module" else names
    with gathered(list(params.parameters()) if given == "module" else params, modifier_rank=rank):
        for name in names:
            same(weights[name].detach().cpu(), dict(job.plain.named_parameters())[name].detach(), name)
            if rank is not None and rank == lab.rank:
                with torch.no_grad():
                    weights[name].add_(1.0)
    with torch.no_grad():
        for name in names if rank is not None else ():
            dict(job.plain.named_parameters())[name].add_(1.0)
    job.check("weights afterwards")


@engine("safe_get_full_fp32_param", "PyTorch's parameters, gradients and moments", examples=15)
def _read(lab: Lab, draw: Draw) -> None:
    job = Job(lab, draw, stages=(1, 2, 3))
    utils = lab.deepspeed.utils
    job.train(1)
    job.backward()
    for (name, one), other in zip(job.engine.module.named_parameters(), job.plain.parameters()):
        if not one.requires_grad:
            continue
        same(utils.safe_get_full_grad(one).cpu().float(), other.grad, f"gradient of {name}", 1e-3)
        same(utils.safe_get_full_fp32_param(one).cpu(), other.detach(), f"value of {name}", 1e-3)
        for key in ("exp_avg", "exp_avg_sq"):
            state = job.optimizer.state[other][key]
            same(utils.safe_get_full_optimizer_state(one, key).cpu(), state, f"{key} of {name}", 1e-3)
    job.update()
    job.check()


@engine("safe_set_full_fp32_param", "the same change in PyTorch", examples=15)
def _written(lab: Lab, draw: Draw) -> None:
    job = Job(lab, draw, stages=(1, 2, 3))
    utils = lab.deepspeed.utils
    job.train(1)
    which = draw("what", ("parameter", "exp_avg", "exp_avg_sq", "gradient", "vectorized"))
    if which in ("gradient", "vectorized"):
        job.backward()
    trained = [(n, p, q) for (n, p), q in zip(job.engine.module.named_parameters(), job.plain.parameters())]
    trained = [each for each in trained if each[1].requires_grad and draw.flag(f"set {each[0]}")]
    if which == "vectorized":
        if not hasattr(utils, "safe_update_full_grad_vectorized"):
            raise Absent("safe_update_full_grad_vectorized")
        utils.safe_update_full_grad_vectorized([p for _, p, _ in trained], lambda grad, _: grad * 2)
    for name, one, other in trained:
        value = torch.full(other.shape, 0.25)
        with torch.no_grad():
            if which == "parameter":
                utils.safe_set_full_fp32_param(one, value.to(lab.device))
                other.copy_(value)
                same(utils.safe_get_full_fp32_param(one).cpu(), value, name)
            elif which == "gradient":
                utils.safe_set_full_grad(one, value.to(lab.device))
                other.grad = value
                same(utils.safe_get_full_grad(one).cpu().float(), value, name)
            elif which == "vectorized":
                other.grad = other.grad * 2
            else:
                utils.safe_set_full_optimizer_state(one, value.to(lab.device), which)
                job.optimizer.state[other][which].copy_(value)
    if which in ("gradient", "vectorized"):
        job.update()
    job.train(1)
    job.check()


@engine("offload_states", "the job without it", examples=12)
def _offloaded(lab: Lab, draw: Draw) -> None:
    states = public("runtime.zero.offload_config:OffloadStateTypeEnum")
    provide_fused_adam(lab)  # ZeRO-3 refuses other optimizers
    optimizer = {"type": "AdamW", "params": {**_ADAM, "torch_adam": False}}
    job = Job(lab, draw, stages=(1, 2, 3), offload=False, optimizer=optimizer)
    if not hasattr(job.engine, "offload_states"):
        raise Absent("offload_states")
    before = draw.integer("steps before", 0, 1)
    chosen = [each for each in states if draw.flag(str(each))]
    options: dict[str, Any] = {"include": chosen} if draw.flag("include") else {}
    options |= {"pin_memory": draw.flag("pin_memory"), "non_blocking": draw.flag("non_blocking")}
    times = draw.integer("times", 1, 2)
    job.train(before)
    for _ in range(times):
        job.engine.offload_states(**options)
        job.engine.reload_states()
    job.train(2)
    job.check()


@engine("get_global_grad_norm", "torch.nn.utils.clip_grad_norm_", examples=10)
def _norm(lab: Lab, draw: Draw) -> None:
    job = Job(lab, draw)
    job.backward()
    wanted = torch.nn.utils.get_total_norm([p.grad for p in job.plain.parameters() if p.grad is not None])
    job.update()
    found = job.engine.get_global_grad_norm()
    if found is not None:
        same(float(found), float(wanted), "norm", 1e-3)
    same([float(each) for each in job.engine.get_lr()], [0.01, 0.02][: 1 + job.groups], "get_lr()")


@engine("zero.Init", "the module that is made without it", examples=10)
def _init(lab: Lab, draw: Draw) -> None:
    dtype, scalar = draw("dtype", (None, torch.float32)), draw.flag("a scalar parameter")
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
    options = {"config_dict_or_path": config, "enabled": draw("enabled", (True, False))}
    torch.manual_seed(0)
    plain = Net(scalar)
    torch.manual_seed(0)
    with lab.deepspeed.zero.Init(dtype=dtype or torch.float32, **options):
        model = Net(scalar)
    wanted = {name: each.detach() for name, each in plain.named_parameters()}
    if options["enabled"]:
        with lab.deepspeed.zero.GatheredParameters(list(model.parameters())):
            same({n: p.detach().cpu() for n, p in model.named_parameters()}, wanted, "weights")
    else:
        same({n: p.detach().cpu() for n, p in model.named_parameters()}, wanted, "weights")
    shapes = {n: tuple(getattr(p, "ds_shape", p.shape)) for n, p in model.named_parameters()}
    same(shapes, {n: tuple(p.shape) for n, p in plain.named_parameters()}, "shapes")


class Tied(torch.nn.Linear):
    """A linear layer whose weight two places share."""


def _layers(kind: str) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    first, last = Tied(6, 6), torch.nn.Linear(6, 6)
    return [first, torch.nn.Linear(6, 6), torch.nn.Tanh(), first if kind == "tied" else last]


@part("engine/PipelineEngine", "the layers one after the other in plain PyTorch", examples=14, ranks=2, device="cuda")
def _pipeline(lab: Lab, draw: Draw) -> None:
    pipe = lab.deepspeed.pipe
    kind, stages = draw("layers", ("plain", "tied")), draw("stages", (1, 2))
    precision = draw("precision", ("fp32", "bf16"))
    micro, clip = draw.integer("micro-batches", 1, 3), draw("clipping", (0.0, 0.05))
    interval = draw("activation_checkpoint_interval", (0, 1))
    zero = draw("stage", (0, 1))
    draw.assume(not (precision == "bf16" and zero == 0))
    mean = lambda y, target: (y - target).pow(2).mean()  # noqa: E731
    plain = _layers(kind)
    given: list[Any] = _layers(kind)
    if kind == "tied":
        spec = pipe.TiedLayerSpec("shared", Tied, 6, 6, tied_weight_attr=["weight", "bias"])
        given = [spec, *given[1:3], spec]
    torch.manual_seed(0)
    module = pipe.PipelineModule(
        layers=given,
        num_stages=stages,
        loss_fn=mean,
        partition_method=draw("partition_method", ("uniform", "parameters")),
        activation_checkpoint_interval=interval,
    )
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": micro,
        "gradient_clipping": clip,
        "optimizer": {"type": "SGD", "params": {"lr": 0.2, "momentum": 0.9}},
        "steps_per_print": 1000,
    }
    if zero:
        config["zero_optimization"] = {"stage": 1}
    if precision == "bf16":
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
    model = torch.nn.Sequential(*plain)
    if kind == "tied" and precision == "fp32":
        shared = module.tied_modules["shared"] if "shared" in getattr(module, "tied_modules", {}) else None
        draw.assume(shared is not None)
        with torch.no_grad():  # the specification made its own
            plain[0].weight.copy_(shared.weight.cpu())
            plain[0].bias.copy_(shared.bias.cpu())
    draw.assume(kind != "tied" or precision == "fp32")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    copies = 2 // stages
    within = 1e-3 if precision == "fp32" else 0.05
    evaluated = draw("evaluated after", (None, 0, 1))  # all ranks draw first: one that fails would draw less
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        made = [[torch.randn(2, 6, generator=generator) for _ in range(2)] for _ in range(micro * copies)]
        optimizer.zero_grad()
        loss = torch.stack([mean(model(x), y) for x, y in made]).mean()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        own = made[lab.rank :: 2] if copies == 2 else made
        half = torch.bfloat16 if precision == "bf16" else torch.float32
        own = [(x.to(half), y.to(half)) for x, y in own]
        got = engine.train_batch(iter([tuple(each) for each in own]))
        same(float(got), float(loss), f"loss of step {step}", within)
        if step == evaluated:
            with torch.no_grad():
                wanted = torch.stack([mean(model(x), y) for x, y in made]).mean()
            for _ in range(2):
                found = engine.eval_batch(iter([tuple(each) for each in own]), num_micro_batches=micro)
                same(float(found), float(wanted), f"evaluation after step {step}", within)


def _adam(draw: Draw) -> dict[str, Any]:
    betas = [draw.number("beta1", 0.5, 0.9), draw.number("beta2", 0.9, 0.99)]
    return {"betas": betas, "eps": draw("eps", (1e-8, 1e-3)), "weight_decay": draw("weight_decay", (0.0, 0.1))}


#: type in the config, and class -> options of the config, those of the reference
_KINDS: Mapping[str, tuple[str, Callable[[Draw], dict[str, Any]], Callable[[Mapping[str, Any]], Any]]] = {
    "Adam": ("Adam", _adam, lambda o: torch.optim.Adam if o.get("adam_w_mode") is False else torch.optim.AdamW),
    "AdamW": ("AdamW", _adam, lambda o: torch.optim.AdamW),
    "SGD": (
        "SGD",
        lambda draw: {
            "momentum": draw("momentum", (0.0, 0.9)),
            "weight_decay": draw("weight_decay", (0.0, 0.1)),
            "nesterov": False,
            "dampening": draw("dampening", (0.0, 0.5)),
        },
        lambda o: torch.optim.SGD,
    ),
    "Adagrad": (
        "Adagrad",
        lambda draw: {"weight_decay": draw("weight_decay", (0.0, 0.1)), "eps": 1e-6},
        lambda o: torch.optim.Adagrad,
    ),
}


def _optimizer(name: str) -> Callable[[Lab, Draw], None]:
    def check(lab: Lab, draw: Draw) -> None:
        kind, drawn, chosen = _KINDS[name]
        options = {"lr": draw("lr", (0.01, 0.1)), **drawn(draw)}
        given = dict(options)
        stage, offload = draw("stage", (0, 1, 2, 3)), False
        if stage:
            offload = draw.flag("offload")
        if kind in ("Adam", "AdamW"):
            given["torch_adam"] = draw.flag("torch_adam")
        if kind == "Adam":
            options["adam_w_mode"] = given["adam_w_mode"] = draw("adam_w_mode", (True, False))
        draw.assume(kind != "Adagrad" or not offload)  # compiles a kernel
        provide_fused_adam(lab)
        provide_cpu_adam(lab)
        config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": kind, "params": given}}
        if stage:
            config["zero_optimization"] = {
                "stage": stage,
                **({"offload_optimizer": {"device": "cpu"}} if offload else {}),
            }
        torch.manual_seed(0)
        model, plain = Net(), Net()
        plain.load_state_dict(model.state_dict())
        optimizer = chosen(options)(
            [each for each in plain.parameters() if each.requires_grad],
            **{key: value for key, value in options.items() if key != "adam_w_mode"},
        )
        engine = lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])
        rate = draw("rate of the second step", (None, 0.005))
        for step in range(3):
            if step == 1 and rate is not None:
                for each in (optimizer, engine.optimizer):
                    for group in each.param_groups:
                        group["lr"] = rate
            x = torch.randn(2, 6, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            plain(x).pow(2).mean().backward()
            optimizer.step()
            engine.backward(engine(x.to(lab.device)).pow(2).mean())
            engine.step()
        wanted = {name: each.detach() for name, each in plain.named_parameters()}
        same(lab.parameters(engine), wanted, "weights", 2e-3)

    return check


for _name in _KINDS:
    part(f"engine/optimizer {_name}", f"torch.optim.{_name}", examples=16, device="cuda")(_optimizer(_name))


def _config(lab: Lab, draw: Draw, scheduled: bool) -> None:
    release = lab.deepspeed.__version__.partition("+")[0]
    row = space.plain()
    chosen = draw.subset([name for name in space.FACTORS if name != "schedule"])
    for name in chosen:
        row[name] = draw(name, list(space.FACTORS[name]))
    if scheduled:
        row["schedule"] = draw("schedule", [each for each in space.FACTORS["schedule"] if each != "none"])
    draw.assume(not space.broken(row, release))
    skipped = os.environ.get("DSFIX_SKIP", "").split(",")
    found = trial(space.plan(row, release), skip=skipped, timeout=300.0 if scheduled else 120.0)
    assert found.agrees, found.failed or "; ".join(map(str, found.differences[:2]))


@part("engine/initialize", "plain PyTorch, by dsfix.audit", examples=25)
def _configs(lab: Lab, draw: Draw) -> None:
    _config(lab, draw, scheduled=False)


@part("engine/initialize on streams", "plain PyTorch, by dsfix.audit; and no race", examples=6)
def _schedules(lab: Lab, draw: Draw) -> None:
    _config(lab, draw, scheduled=True)
