"""The placement report after the real deepspeed.initialize, in scenes; on standard error each has a mark.

With "ranks" instead of a file: one of two ranks, which only log.
"""

import inspect
import io
import json
import sys

import dsfix  # isort: skip  before torch and DeepSpeed
import numpy

from dsfix.guards import GuardError
from dsfix.lab import Lab
from dsfix.patch import CannotTell
from dsfix.settings import Settings

# correct models: what the report says about them, before and after a training step

CPU = {"device": "cpu"}
OFFLOADED = {"offload_optimizer": CPU, "offload_param": CPU}


def adam(stage, **zero):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage, **zero},
    }


def correct_models(lab):
    """(name, model, config)"""
    torch, zero = lab.torch, lab.deepspeed.zero
    from dsfix.lab.models import MLP, Transformer

    class Harmless(MLP):
        """Contains much that looks misplaced but is not."""

        def __init__(self):
            super().__init__()
            self.normed = torch.nn.utils.weight_norm(torch.nn.Linear(16, 16))  # has a plain attribute `weight`
            self.register_buffer("inv_freq", torch.ones(16))
            self.register_buffer("absent", None)
            self.original_inv_freq = torch.ones(16, device="cpu")
            self.eps = torch.tensor(1e-6, device="cpu")
            self.ghost = torch.ones(16, device="meta")
            self.twice = [self.head.weight]
            self.rotary = Rotary()
            self.words, self.table = ["a", torch.ones(1, device="cpu")], numpy.ones(16)

        def forward(self, x):
            return super().forward(self.normed(x) * self.inv_freq + self.eps)

    class Rotary(torch.nn.Module):
        """Like a class of transformers."""

        __module__ = "transformers.models.some.modeling_some"

        def __init__(self):
            super().__init__()
            self.positions = torch.ones(16, device="cpu")

    class Stays(torch.nn.Module):
        """Decides its own device."""

        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(16, 16).requires_grad_(False)

        def _apply(self, fn, *args, **kwargs):
            return self

        def forward(self, x):
            return self.inner(x.cpu()).to(x.device)

    def frozen():
        model = MLP()
        model.blocks.requires_grad_(False)
        return model

    def tied():
        model = Transformer()
        model.head.weight = model.tokens.weight
        return model

    def under_init(**options):
        with zero.Init(dtype=torch.float32, **options):
            return MLP()

    for stage in (0, 1, 2, 3):
        yield f"stage {stage}", Harmless(), adam(stage)
        yield f"stage {stage}, frozen", frozen(), adam(stage)
        yield f"stage {stage}, tied", tied(), adam(stage)
    for stage in (1, 2, 3):
        yield f"stage {stage}, offloaded optimizer", MLP(), adam(stage, offload_optimizer=CPU)
    yield "stage 3, offloaded parameters", MLP(), adam(3, **OFFLOADED)
    yield "stage 3, nothing persistent", MLP(), adam(3, stage3_param_persistence_threshold=0)
    yield "zero.Init", under_init(), adam(3)
    offloaded = adam(3, **OFFLOADED)
    yield "zero.Init, offloaded parameters", under_init(config_dict_or_path=offloaded), offloaded
    yield "zero.Init, remote", under_init(remote_device="cpu"), offloaded
    yield "zero.Init for a part", torch.nn.Sequential(under_init(), torch.nn.Linear(1, 1)), adam(3)
    yield "bf16, stage 3", MLP(), {**adam(3), "bf16": {"enabled": True}}
    yield "a class that decides itself", torch.nn.Sequential(Stays(), MLP()), adam(1)
    layers = [MLP(), torch.nn.Linear(1, 1)]
    pipeline = lab.deepspeed.pipe.PipelineModule(layers, num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    yield "pipeline", pipeline, adam(1)


def train(lab, engine):
    from dsfix.lab.models import Transformer, regression_batch, token_batch

    make = token_batch if isinstance(engine.module, Transformer) else regression_batch
    batch = [each.to(lab.device) for each in make(rank=0, step=0)]
    if hasattr(engine, "train_batch"):
        engine.train_batch(data_iter=iter([batch]))
        return
    inputs, _ = batch
    if engine.bfloat16_enabled():
        inputs = inputs.bfloat16()
    engine.backward(engine(inputs).float().square().mean())
    engine.step()


def normal(lab):
    results = {}
    for name, model, settings in correct_models(lab):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        engine = lab.initialize(model, settings, model_parameters=trained)
        reports = [dsfix.placement_report(engine)]
        train(lab, engine)
        reports.append(dsfix.placement_report(engine))
        results[name] = [[report.device, *map(str, report)] for report in reports]
    return results


# tensors attached after deepspeed.initialize, models without an engine, and tensors that must not be reported


def seen(report):
    return [report.device, *([each.path, each.kind, list(each.shape), each.device, each.why[:16]] for each in report)]


def cases(lab):
    torch, nn = lab.torch, lab.torch.nn

    def engine(stage):
        return lab.initialize(nn.Sequential(nn.Linear(2, 2)), config(stage))

    def config(stage):
        adam = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 0.0,
            "optimizer": adam,
            "zero_optimization": {"stage": stage},
        }

    def attach(engine, device):
        late = nn.Linear(2, 2, bias=False)
        late.register_buffer("scale", torch.ones(2))
        engine.module.add_module("late", late.to(device))
        return seen(dsfix.placement_report(engine))

    def in_forward():
        """How much of the second layer is gathered before and after a report in the first layer's forward pass."""
        settings = config(3)
        settings["zero_optimization"].update(stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=0)
        asked = lab.initialize(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), settings)
        weight, gathered = asked.module[1].weight, []

        def ask(*_):
            gathered.extend([weight.numel(), len(dsfix.placement_report(asked)), weight.numel()])

        asked.module[0].register_forward_hook(ask)
        asked(torch.ones(1, 2, device=lab.device))
        return gathered

    def known_to_nobody():
        asked = engine(3)
        asked.module[0].register_parameter("extra", nn.Parameter(torch.ones(2)))
        return seen(dsfix.placement_report(asked))

    def unchanged():
        from deepspeed.runtime.config import DeepSpeedConfig

        kind, settings = lab.deepspeed.DeepSpeedEngine, config(0)
        model = nn.Linear(2, 2)
        options = {"config": settings, "config_class": DeepSpeedConfig(settings)}
        known = inspect.signature(kind).parameters
        made = kind(
            args=None,
            model=model,
            model_parameters=list(model.parameters()),
            dont_change_device=True,
            **{name: value for name, value in options.items() if name in known},
        )
        return seen(dsfix.placement_report(made))

    def offloaded():
        asked = engine(1)
        asked.module[0].weight.ds_offload = True  # as for deepspeed.linear's frozen weights
        asked.module[0].to("cpu")
        return seen(dsfix.placement_report(asked))

    def partitioned():
        """Gathering ignores the device of an empty parameter."""
        settings = config(3)
        settings["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        asked = lab.initialize(nn.BatchNorm1d(2), settings)
        del asked.module.num_batches_tracked, asked.module.running_var
        asked.module.to("cpu")
        return seen(dsfix.placement_report(asked))

    def half():
        model = nn.Sequential(nn.LayerNorm(8, bias=False), nn.LayerNorm(2)).to(lab.device)
        model[1].to("cpu")
        return model

    def partly_meta():
        model = half()
        model[1].to_empty(device="meta")
        return model

    return {
        "scripted": seen(dsfix.placement_report(torch.jit.script(half()))),
        "late on the CPU, stage 3": attach(engine(3), "cpu"),
        "late on the device, stage 3": attach(engine(3), lab.device),
        "late on the CPU, stage 1": attach(engine(1), "cpu"),
        "late on the device, stage 1": attach(engine(1), lab.device),
        "a late parameter of a module that ZeRO knows": known_to_nobody(),
        "in a forward pass": in_forward(),
        "moved by hand, one of them offloaded": offloaded(),
        "moved by hand, stage 3": partitioned(),
        "dont_change_device": unchanged(),
        "a model on the CPU": seen(dsfix.placement_report(nn.Linear(2, 2))),
        "half of a model": seen(dsfix.placement_report(half())),
        "half of a model, expected on the CPU": seen(dsfix.placement_report(half(), "cpu")),
        "expected on the device without its number": seen(dsfix.placement_report(half(), lab.device.type)),
        "half of it on meta": seen(dsfix.placement_report(partly_meta())),
        "nothing": seen(dsfix.placement_report(nn.Sequential())),
    }


def attribute(lab):
    """A model of which only a plain attribute is on the CPU."""
    model = lab.torch.nn.Linear(2, 2)
    model.table = [lab.torch.ones(2, device="cpu")]
    engine = lab.initialize(model, {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}})
    return [[each.path, each.kind, each.device] for each in dsfix.placement_report(engine)]


# a model like Qwen-Omni, created under zero.Init, whose talker's buffers stay on the CPU

WIDTH = 4
UNDER_INIT = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}


def buffers(torch):
    """By the function that creates them."""
    made = {name: getattr(torch, name)(WIDTH) for name in ("zeros", "ones", "arange", "randn", "rand", "hann_window")}
    file = io.BytesIO()
    torch.save(torch.full((WIDTH,), 3.0, device="cpu"), file)
    file.seek(0)
    return {
        **made,
        "empty": torch.empty(WIDTH).zero_(),
        "eye": torch.eye(WIDTH)[0],
        "full": torch.full((WIDTH,), 2.0),
        "tensor": torch.tensor([1.0] * WIDTH),
        "linspace": torch.linspace(0, 1, WIDTH),
        "logspace": torch.logspace(0, 1, WIDTH),
        "from_numpy": torch.from_numpy(numpy.ones(WIDTH, dtype=numpy.float32)),
        "as_tensor": torch.as_tensor([2.0] * WIDTH),
        "load": torch.load(file),
        "told": torch.ones(WIDTH, device="cpu"),
    }


def talker(lab):
    torch = lab.torch
    nn = torch.nn

    class Talker(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(WIDTH, WIDTH)
            for name, buffer in buffers(torch).items():
                self.register_buffer(name, buffer)
            self.register_buffer("tied", self.rand)
            self.alias = [self.rand]
            self.gain = torch.linspace(1, 2, WIDTH)

        def forward(self, x):
            x = self.proj(x) * self.gain.to(x.device) + self.alias[0]
            return x + sum(self.buffers())

    class Omni(nn.Module):
        def __init__(self):
            super().__init__()
            self.thinker, self.talker = nn.Linear(WIDTH, WIDTH), Talker()

        def forward(self, x):
            return self.talker(self.thinker(x))

    def outside(model):
        """An adapter that is not created under zero.Init."""
        model.talker.adapter = nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=True).eval()
        return model

    with lab.deepspeed.zero.Init(config_dict_or_path=UNDER_INIT, dtype=torch.float32):
        model = Omni()
    outside(model)
    results = {"before": [each.path for each in dsfix.placement_report(model)]}
    try:
        engine = lab.initialize(model, UNDER_INIT)
    except GuardError as error:
        return {**results, "stopped": f"{type(error).__name__}: {error}"}
    results["report"] = [[each.path, each.kind, each.device] for each in dsfix.placement_report(engine)]
    x = torch.ones(2, WIDTH, device=lab.device)
    try:
        output = engine(x)
    except RuntimeError as error:
        return {**results, "forward": str(error)}
    plain = outside(Omni())
    moved = {name: buffer.cpu() for name, buffer in model.named_buffers(remove_duplicate=False)}
    plain.load_state_dict({**moved, **lab.parameters(engine)})
    return {**results, "difference": (output.cpu() - plain(x.cpu())).abs().max().item()}


# what each of two ranks logs about tensors of both, tensors misplaced only on rank 1, and pipeline stages


def under_init(lab):
    torch = lab.torch
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    with lab.deepspeed.zero.Init(config_dict_or_path=config, dtype=torch.float32):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model.register_buffer("by_number", torch.ones(2, device="cuda:0"))
        model.register_buffer("on_cpu", torch.rand(2))
    lab.initialize(model, config)


def pipeline(lab):
    torch = lab.torch
    torch.distributed.group.WORLD.bound_device_id = None  # with which gloo cannot create another group
    layers = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    for layer in layers:
        layer.plain = torch.rand(2)
    model = lab.deepspeed.pipe.PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    optimizer = {"type": "SGD", "params": {"lr": 0.1}}
    lab.initialize(model, {"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer})


SCENES = {
    "normal": (normal, "warn"),
    "cases": (cases, "off"),
    "talker": (talker, "warn"),
    "talker, move": (talker, "move"),
    "talker, error": (talker, "error"),
    "talker, off": (talker, "off"),
    "attribute, error": (attribute, "error"),
}


def set_mode(lab, mode):
    """Changes DSFIX_PLACEMENT for the following calls, instead of starting a new process."""
    cells = lab.deepspeed.initialize.__closure__
    (settings,) = (cell for cell in cells if isinstance(cell.cell_contents, Settings))
    settings.cell_contents = settings.cell_contents._replace(placement=mode)


def play(lab):
    results = {}
    for name, (run, mode) in SCENES.items():
        print(f"scene {name}", file=sys.stderr, flush=True)
        set_mode(lab, mode)
        results[name] = run(lab)
    return results


with Lab("cuda") as lab:
    if sys.argv[1] == "ranks":
        under_init(lab)
        set_mode(lab, "move")
        under_init(lab)
        pipeline(lab)
        sys.exit()
    try:
        assert lab.deepspeed is not None
    except CannotTell as reason:
        found = {"cannot tell": str(reason)}
    else:
        found = play(lab)
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(found, file)
