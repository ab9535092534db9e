"""One of two ranks: what each logs about tensors of both, tensors misplaced only on rank 1, and pipeline stages."""

import dsfix  # noqa: F401 isort: skip  before torch and DeepSpeed
from placement_mode import set_mode

from dsfix.lab import Lab


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


with Lab("cuda") as lab:
    under_init(lab)
    set_mode(lab, "move")
    under_init(lab)
    pipeline(lab)
