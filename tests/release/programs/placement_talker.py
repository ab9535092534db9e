"""A Qwen-Omni-like model created under zero.Init, whose talker's buffers stay on the CPU: the outcome."""

import io

import numpy

import dsfix
from dsfix.guards import GuardError

WIDTH = 4
CONFIG = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}


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


def run(lab):
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

    with lab.deepspeed.zero.Init(config_dict_or_path=CONFIG, dtype=torch.float32):
        model = Omni()
    outside(model)
    results = {"before": [each.path for each in dsfix.placement_report(model)]}
    try:
        engine = lab.initialize(model, CONFIG)
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
