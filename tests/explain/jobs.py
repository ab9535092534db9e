"""Jobs that crash with the problems of the signatures, for record.py: the real DeepSpeed with a tiny model."""

from __future__ import annotations


def _uses_a_layer_twice(torch):
    from torch.utils.checkpoint import checkpoint

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=True)
            return x

    return Model()


def _train(lab, model, inputs, stage, **config):
    config.setdefault("optimizer", {"type": "SGD", "params": {"lr": 0.1}})
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, **config.pop("zero", {})}
    parameters = [each for each in model.parameters() if each.requires_grad]
    engine = lab.initialize(model, {"zero_optimization": zero, **config}, model_parameters=parameters)
    engine.backward(engine(*inputs).sum())
    engine.step()
    return engine


def reentrant_shared_module_zero2(lab):
    inputs = lab.torch.ones(1, 8, device=lab.device, requires_grad=True)
    _train(lab, _uses_a_layer_twice(lab.torch), [inputs], 2)


def reentrant_shared_module_zero3(lab):
    inputs = lab.torch.ones(1, 8, device=lab.device, requires_grad=True)
    _train(lab, _uses_a_layer_twice(lab.torch), [inputs], 3)


def several_backwards(lab):
    torch = lab.torch
    model = torch.nn.Linear(8, 1)
    config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 2}}
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 8, device=lab.device)).sum())


def hpz_group_rank(lab):
    model = lab.torch.nn.Linear(8, 8)
    _train(lab, model, [lab.torch.ones(1, 8, device=lab.device)], 3, zero={"zero_hpz_partition_size": 2})


hpz_group_rank.ranks = 2


def empty_parameter(lab):
    torch = lab.torch
    model = torch.nn.Linear(8, 1)
    model.empty = torch.nn.Parameter(torch.empty(0))
    model.after = torch.nn.Parameter(torch.ones(8))
    _train(lab, model, [torch.ones(1, 8, device=lab.device)], 2)


def trainable_dtypes_differ(lab):
    """A bf16 model with an fp32 adapter, both trained."""
    torch = lab.torch
    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
    with lab.deepspeed.zero.Init(config_dict_or_path=config):
        base = torch.nn.Linear(8, 8)
    model = torch.nn.Sequential(base, torch.nn.Linear(8, 1))
    _train(lab, model, [torch.ones(1, 8, device=lab.device)], 3, bf16={"enabled": True})


def module_outside_engine(lab):
    torch = lab.torch
    model = torch.nn.Embedding(16, 8)
    engine = lab.initialize(
        model,
        {
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        },
        model_parameters=model.parameters(),
    )
    torch.nn.functional.embedding(torch.zeros(1, dtype=torch.long, device=lab.device), engine.module.weight)


def frozen_group(lab):
    torch = lab.torch
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[0].requires_grad_(False)
    config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 2}}
    groups = [{"params": list(model[0].parameters()), "lr": 0.01}, {"params": list(model[1].parameters())}]
    lab.initialize(model, config, model_parameters=groups)


def another_world_size(lab):
    torch = lab.torch
    engine = _train(lab, torch.nn.Linear(8, 1), [torch.ones(1, 8, device=lab.device)], 1)
    engine.save_checkpoint(str(lab.tmp))
    (path,) = lab.tmp.rglob("mp_rank_00_model_states.pt")
    state = torch.load(path, weights_only=False)
    torch.save({**state, "dp_world_size": 4}, path)
    engine.load_checkpoint(str(lab.tmp))


def mixed_checkpoint_directory(lab):
    torch = lab.torch
    import shutil

    engine = _train(lab, torch.nn.Linear(8, 1), [torch.ones(1, 8, device=lab.device)], 2)
    engine.save_checkpoint(str(lab.tmp))
    (path,) = lab.tmp.rglob("*_optim_states.pt")
    shutil.copy(path, path.with_name("zero_pp_rank_1_mp_rank_00_optim_states.pt"))
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    get_fp32_state_dict_from_zero_checkpoint(str(lab.tmp))


def zero_to_fp32_copy_weights_only(lab):
    """The script that save_checkpoint writes into the checkpoint, run as documented: without dsfix."""
    import subprocess
    import sys

    torch = lab.torch
    engine = _train(lab, torch.nn.Linear(8, 1), [torch.ones(1, 8, device=lab.device)], 2)
    engine.save_checkpoint(str(lab.tmp))
    subprocess.run([sys.executable, str(lab.tmp / "zero_to_fp32.py"), str(lab.tmp), str(lab.tmp / "fp32")])


def loss_scale_at_minimum(lab):
    torch = lab.torch
    model = torch.nn.Linear(8, 1)
    inputs = torch.full((1, 8), float("inf"), device=lab.device, dtype=torch.float16)
    fp16 = {"enabled": True, "initial_scale_power": 1, "hysteresis": 1}
    engine = lab.initialize(
        model,
        {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "fp16": fp16, "zero_optimization": {"stage": 2}},
        model_parameters=model.parameters(),
    )
    for _ in range(4):
        engine.backward(engine(inputs).float().sum())
        engine.step()


def removed_config_key(lab):
    model = lab.torch.nn.Linear(8, 1)
    lab.initialize(model, {"amp": {"enabled": False}}, model_parameters=model.parameters())


def step_inside_no_sync(lab):
    torch = lab.torch
    model = torch.nn.Linear(8, 1)
    engine = lab.initialize(
        model,
        {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 1}},
        model_parameters=model.parameters(),
    )
    with engine.no_sync():
        engine.backward(engine(torch.ones(1, 8, device=lab.device)).sum())
        engine.step()


def module_left_on_cpu(lab):
    """What zero.Init does to a buffer created by torch.rand."""
    torch = lab.torch

    class Talker(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
            self.register_buffer("speaker", torch.rand(1, 8))

        def forward(self, x):
            return self.layer(x + self.speaker).sum()

    _ = lab.deepspeed
    with lab.deepspeed.zero.Init(config_dict_or_path={"zero_optimization": {"stage": 3}, "train_batch_size": 1}):
        model = Talker()
    _train(lab, model, [torch.ones(1, 8, device=lab.device)], 3)


def device_map_several_devices(lab):
    """The embedding of a model dispatched to eight devices, called by rank 0."""
    torch = lab.torch
    embedding = torch.nn.Embedding(16, 8, device="cuda:7")
    embedding(torch.zeros(1, dtype=torch.long, device="cuda:0"))


def cuda_home_missing(lab):
    _ = lab.deepspeed
    import torch.utils.cpp_extension

    torch.utils.cpp_extension.CUDA_HOME = None
    from deepspeed.ops.op_builder.builder import installed_cuda_version

    installed_cuda_version("fused_adam")


def extension_build_failed(lab):
    """A compiler that does not find a library, followed by the deletion of the incomplete optimizer."""
    import os

    compiler = lab.tmp / "c++"
    compiler.write_text(
        '#!/bin/sh\n[ $# = 1 ] && exec c++ "$@"\n'
        "echo '/usr/bin/ld: cannot find -lcurand: No such file or directory' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    torch = lab.torch
    _ = lab.deepspeed
    os.environ.update(CXX=str(compiler), TORCH_EXTENSIONS_DIR=str(lab.tmp))
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(1))])


def cpu_split_view(lab):
    torch = lab.torch
    _train(lab, torch.nn.Linear(8, 1), [torch.ones(1, 8)], 1)


cpu_split_view.device, cpu_split_view.ranks = "cpu", 2


def offload_states_with_offload_param(lab):
    """What accelerate writes into the config where nothing is offloaded."""
    inputs = lab.torch.ones(1, 8, device=lab.device)
    engine = _train(lab, lab.torch.nn.Linear(8, 8), [inputs], 3, zero={"offload_param": {"device": "none"}})
    engine.offload_states()


def profiler_attention_by_name(lab):
    torch = lab.torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            x = self.layer(x)[None, None]
            return torch.nn.functional.scaled_dot_product_attention(query=x, key=x, value=x)

    inputs = torch.ones(2, 8, device=lab.device)
    engine = _train(lab, Model(), [inputs], 0, flops_profiler={"enabled": True, "profile_step": 1})
    engine(inputs)


def bf16_without_gradients(lab):
    config = {
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    model = lab.torch.nn.Linear(8, 8)
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.step()


def moe_topk_without_dropping(lab):
    _ = lab.deepspeed
    from deepspeed.moe.sharded_moe import topkgating

    lab.deepspeed.init_distributed("gloo")
    topkgating(lab.torch.randn(8, 4), 3, 1.0, 1, drop_tokens=False)


def moe_capacity_above_tokens(lab):
    """Two experts and a capacity factor of four."""
    _ = lab.deepspeed
    from deepspeed.moe.sharded_moe import top1gating

    top1gating(lab.torch.randn(4, 2), 4.0, 0)


def compile_backend_refused(lab):
    model = lab.torch.nn.Linear(8, 1)
    config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "compile": {"enabled": True, "backend": "eager"}}
    lab.initialize(model, config, model_parameters=model.parameters())


def skip_init_under_zero_init(lab):
    """A model built as ChatGLM's: torch.nn.utils.skip_init makes a module on meta, then without values."""
    torch = lab.torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.utils.skip_init(torch.nn.Linear, 8, 8)

        def forward(self, x):
            return self.layer(x)

    _ = lab.deepspeed
    with lab.deepspeed.zero.Init(config_dict_or_path={"zero_optimization": {"stage": 3}, "train_batch_size": 1}):
        model = Model()
    _train(lab, model, [torch.ones(1, 8, device=lab.device)], 3)


def _tensor_backward(lab, stage):
    torch = lab.torch
    from torch.utils.checkpoint import checkpoint

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.last(checkpoint(self.first, x, use_reentrant=True))

    config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": stage}}
    model = Model()
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    for _ in range(3):
        output = engine(torch.ones(1, 8, device=lab.device, requires_grad=True))
        output.backward(torch.ones_like(output))
        engine.step()


def tensor_backward_reentrant_zero2(lab):
    _tensor_backward(lab, 2)


def tensor_backward_reentrant_zero3(lab):
    _tensor_backward(lab, 3)


def float64_gradients(lab):
    torch = lab.torch
    model = torch.nn.Linear(8, 1).double()
    _train(lab, model, [torch.ones(1, 8, device=lab.device, dtype=torch.float64)], 0)


def linear_of_one_dimension(lab):
    """Under zero.Init torch's linear is DeepSpeed's."""
    torch = lab.torch
    _ = lab.deepspeed
    with lab.deepspeed.zero.Init(config_dict_or_path={"zero_optimization": {"stage": 3}, "train_batch_size": 1}):
        model = torch.nn.Linear(8, 8)
    _train(lab, model, [torch.ones(8, device=lab.device)], 3)


def autocast_of_another_engine(lab):
    """An engine that reduces in fp32, and another one with torch_autocast that is made after it."""
    torch = lab.torch

    def engine(**config):
        model = torch.nn.Linear(8, 8)
        config = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 2}, **config}
        return lab.initialize(model, config, model_parameters=model.parameters())

    first = engine(bf16={"enabled": True}, communication_data_type="fp32")
    engine(torch_autocast={"enabled": True, "dtype": "bfloat16"})
    first.backward(first(torch.ones(1, 8, device=lab.device, dtype=torch.bfloat16)).sum())


def data_analyzer_specific_threads(lab):
    _ = lab.deepspeed
    from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DataAnalyzer

    DataAnalyzer(list(range(8)), num_threads=2, specific_threads=[1], save_path=str(lab.tmp)).run_map()


data_analyzer_specific_threads.device = "cpu"


def zenflow_empty_selection(lab):
    """One column of a weight is selected, which one of the ranks does not have."""
    zenflow = {"topk_ratio": 0.07, "select_strategy": "step", "select_interval": 2, "update_interval": 1}
    _train(
        lab,
        lab.torch.nn.Sequential(*(lab.torch.nn.Linear(16, 16) for _ in range(4))),
        [lab.models.regression_batch(rank=lab.rank, step=0)[0].to(lab.device, lab.torch.bfloat16)],
        3,
        bf16={"enabled": True},
        optimizer={"type": "AdamW", "params": {"lr": 0.1, "torch_adam": False}},
        zero={"offload_optimizer": {"device": "cpu"}, "zenflow": zenflow},
    )


zenflow_empty_selection.ranks = 2
