"""Tensors attached after deepspeed.initialize, models without an engine, and tensors that must not be reported."""

import inspect

import dsfix


def seen(report):
    return [report.device, *([each.path, each.kind, list(each.shape), each.device, each.why[:16]] for each in report)]


def run(lab):
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
