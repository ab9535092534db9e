"""Correct models: what the placement report says about them, before and after a training step."""

import numpy

import dsfix

CPU = {"device": "cpu"}
OFFLOADED = {"offload_optimizer": CPU, "offload_param": CPU}


def config(stage, **zero):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage, **zero},
    }


def cases(lab):
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
        yield f"stage {stage}", Harmless(), config(stage)
        yield f"stage {stage}, frozen", frozen(), config(stage)
        yield f"stage {stage}, tied", tied(), config(stage)
    for stage in (1, 2, 3):
        yield f"stage {stage}, offloaded optimizer", MLP(), config(stage, offload_optimizer=CPU)
    yield "stage 3, offloaded parameters", MLP(), config(3, **OFFLOADED)
    yield "stage 3, nothing persistent", MLP(), config(3, stage3_param_persistence_threshold=0)
    yield "zero.Init", under_init(), config(3)
    offloaded = config(3, **OFFLOADED)
    yield "zero.Init, offloaded parameters", under_init(config_dict_or_path=offloaded), offloaded
    yield "zero.Init, remote", under_init(remote_device="cpu"), offloaded
    yield "zero.Init for a part", torch.nn.Sequential(under_init(), torch.nn.Linear(1, 1)), config(3)
    yield "bf16, stage 3", MLP(), {**config(3), "bf16": {"enabled": True}}
    yield "a class that decides itself", torch.nn.Sequential(Stays(), MLP()), config(1)
    layers = [MLP(), torch.nn.Linear(1, 1)]
    pipeline = lab.deepspeed.pipe.PipelineModule(layers, num_stages=1, loss_fn=torch.nn.functional.mse_loss)
    yield "pipeline", pipeline, config(1)


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


def run(lab):
    results = {}
    for name, model, settings in cases(lab):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        engine = lab.initialize(model, settings, model_parameters=trained)
        reports = [dsfix.placement_report(engine)]
        train(lab, engine)
        reports.append(dsfix.placement_report(engine))
        results[name] = [[report.device, *map(str, report)] for report in reports]
    return results
