"""One of two ranks: what each logs of what both have, of what only rank 1 has astray, and of stages of a pipeline."""

import sys

import dsfix  # noqa: F401 isort: skip
from dsfix.lab import Lab


def main():
    with Lab("cuda") as lab:
        torch, nn = lab.torch, lab.torch.nn
        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
        with lab.deepspeed.zero.Init(config_dict_or_path=config, dtype=torch.float32):
            model = nn.Sequential(nn.Linear(2, 2))
            model.register_buffer("by_number", torch.ones(2, device="cuda:0"))
            model.register_buffer("on_cpu", torch.rand(2))
        lab.initialize(model, config)
        torch.distributed.group.WORLD.bound_device_id = None  # with which gloo can make no other group
        layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        for layer in layers:
            layer.plain = torch.rand(2)
        pipeline = lab.deepspeed.pipe.PipelineModule(layers, num_stages=2, loss_fn=nn.functional.mse_loss)
        optimizer = {"type": "SGD", "params": {"lr": 0.1}}
        print("pipeline", file=sys.stderr)
        lab.initialize(pipeline, {"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer})


main()
