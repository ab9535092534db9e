"""A tiny model with DeepSpeed's mixture of experts, and the same in plain PyTorch. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dsfix.lab import reference
from dsfix.lab.models import regression_batch

if TYPE_CHECKING:
    from dsfix.lab import Lab

WIDTH, EXPERTS = 16, 2
_STEPS, _RATE = 2, 0.1
_LAYER = "layer.deepspeed_moe.experts.deepspeed_experts."


class Mixture(nn.Module):  # type: ignore[misc,unused-ignore]
    """All experts in one process, with room for every token, of which each passes one: float [n, WIDTH] -> [n, 1].

    scale: what the experts' gradients are multiplied by.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        if scale != 1.0:
            for parameter in self.experts.parameters():
                parameter.register_hook(lambda gradient: scale * gradient)  # type: ignore[no-untyped-call,unused-ignore]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.below(x).tanh()
        probabilities = self.router(x).softmax(dim=1)
        chosen = torch.zeros_like(probabilities).scatter(1, probabilities.argmax(dim=1, keepdim=True), 1.0)
        weights = probabilities * chosen
        mixed = sum(weights[:, [number]] * expert(x) for number, expert in enumerate(self.experts))
        result: torch.Tensor = self.head(mixed)
        return result

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(self(inputs), targets)


def run_eagerly() -> None:
    """What DeepSpeed would compile on first use is not compiled."""
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")
    else:  # before torch 2.6
        from torch import _dynamo

        _dynamo.config.disable = True  # type: ignore[assignment,unused-ignore]


class Sharded(nn.Module):  # type: ignore[misc,unused-ignore]
    """The same model with DeepSpeed's layer, whose experts `ep_size` ranks share."""

    def __init__(self, lab: Lab, ep_size: int) -> None:
        super().__init__()
        _ = lab.deepspeed
        from deepspeed.moe import layer

        run_eagerly()
        same = Mixture()
        self.below, self.head = same.below, same.head
        self.layer = layer.MoE(
            WIDTH, nn.Linear(WIDTH, WIDTH), EXPERTS, ep_size, k=1, capacity_factor=EXPERTS, use_rts=False
        )
        self.layer.deepspeed_moe.gate.wg.load_state_dict(same.router.state_dict())
        own = self.layer.deepspeed_moe.experts.deepspeed_experts
        self._first = lab.rank % ep_size * len(own)
        for number, expert in enumerate(own):
            expert.load_state_dict(same.experts[self._first + number].state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _, _ = self.layer(self.below(x).tanh())
        result: torch.Tensor = self.head(mixed)
        return result

    def groups(self) -> list[dict[str, Any]]:
        """The parameters as DeepSpeed's optimizers want them: the experts apart."""
        return groups(self)

    def named(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """This rank's tensors, with the names that they have in `Mixture`."""
        result = {}
        for name, tensor in tensors.items():
            if name.startswith(_LAYER):
                number, _, rest = name[len(_LAYER) :].partition(".")
                name = f"experts.{self._first + int(number)}.{rest}"
            result[name.replace("layer.deepspeed_moe.gate.wg.", "router.")] = tensor
        return result


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """A model's parameters as DeepSpeed's optimizers want them: the experts apart."""
    from deepspeed.moe import utils

    split = utils.split_params_into_different_moe_groups_for_optimizer
    return list(split({"params": list(model.parameters()), "name": "all"}))


def train(lab: Lab, ep_size: int, steps: Sequence[Sequence[Any]], rate: float, **options: Any) -> dict[str, Any]:
    """Train the model with SGD; returns this rank's parameters, with the names that they have in `Mixture`.

    steps: for each step a batch for each rank; options: of the config.
    """
    model = Sharded(lab, ep_size)
    config = {
        "train_micro_batch_size_per_gpu": len(steps[0][0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": rate}},
        **options,
    }
    engine = lab.initialize(model, config, model_parameters=model.groups())
    for step in steps:
        inputs, targets = (each.to(lab.device) for each in step[lab.rank])
        engine.backward(nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
    return model.named(lab.parameters(engine))


def compare(
    lab: Lab, ep_size: int, forms: Mapping[str, Mapping[str, Any]], wrong: str, scale: float = 1.0, share: float = 1.0
) -> str:
    """Train on two ranks with each of these options of the config, and compare with plain PyTorch.

    forms: the options, by what they are. wrong: what the bug's parameters are; the experts' gradients are then `scale`
    times as large, and the learning rate is that share of the right one.

    Raises:
        BugPresent: the parameters are those.
    """
    steps = [[regression_batch(rank, step) for rank in range(2)] for step in range(_STEPS)]
    right, others = (
        reference.train(model, steps, model.loss, "SGD", lr=rate).parameters
        for model, rate in ((Mixture(), _RATE), (Mixture(scale), _RATE * share))
    )
    reports = []
    for form, options in forms.items():
        seen = train(lab, ep_size, steps, _RATE, **options)
        reports.append(
            reference.compare(
                seen,
                {name: right[name] for name in seen},
                {wrong: {name: others[name] for name in seen}},
                after=f"{form}: after {_STEPS} steps with the experts on {ep_size} of 2 ranks",
            )
        )
    return "; ".join(reports)


class _Dispatcher:
    """Tutel's, as far as DeepSpeed's layer uses it."""

    def __init__(self, num_global_experts: int, capacity: int, model_dim: int, dispatch_dtype: torch.dtype) -> None:
        self.experts = num_global_experts

    def update(self, indices: Any, locations: Any, gates: Any, capacity: int) -> None:
        self.gates, self.capacity = gates, int(capacity)
        self.places = [expert * self.capacity + place for expert, place in zip(indices, locations)]

    def encode(self, tokens: torch.Tensor) -> torch.Tensor:
        buffer = tokens.new_zeros(self.experts * self.capacity, tokens.shape[1])
        for places in self.places:
            buffer = buffer.index_copy(0, places.long(), tokens)
        return buffer

    def decode(self, buffer: torch.Tensor) -> Any:
        return sum(gate[:, None] * buffer[places.long()] for gate, places in zip(self.gates, self.places))


def provide_tutel(lab: Lab) -> None:
    """Puts plain PyTorch in place of Tutel, if it is not installed: its kernels are compiled for the device."""
    _ = lab.deepspeed
    from deepspeed.moe import sharded_moe

    run_eagerly()
    if not sharded_moe.TUTEL_INSTALLED:
        sharded_moe.TUTEL_INSTALLED = True
        sharded_moe.tutel_moe = SimpleNamespace(
            fast_dispatcher=_Dispatcher, fast_cumsum_sub_one=lambda mask: torch.cumsum(mask, dim=0) - 1
        )


def tensor_parallel(lab: Lab, model: nn.Module) -> Any:
    """The engine of a model with DeepSpeed's layer on two ranks that are tensor-parallel."""
    comm = lab.deepspeed.comm
    both = torch.distributed.new_group([0, 1])
    alone = [torch.distributed.new_group([each]) for each in range(2)][lab.rank]
    mpu = SimpleNamespace(
        get_model_parallel_rank=lambda: lab.rank,
        get_model_parallel_world_size=lambda: 2,
        get_model_parallel_group=lambda: both,
        get_tensor_model_parallel_rank=lambda: lab.rank,
        get_tensor_model_parallel_world_size=lambda: 2,
        get_tensor_model_parallel_group=lambda: both,
        get_data_parallel_rank=lambda: 0,
        get_data_parallel_world_size=lambda: 1,
        get_data_parallel_group=lambda: alone,
    )
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    engine = lab.initialize(model, config, model_parameters=groups(model), mpu=mpu)
    gather = comm.all_gather_into_tensor  # into a flat tensor, and gloo wants what it gives to be flat
    comm.all_gather_into_tensor = lambda output, mine, **options: gather(output, mine.flatten(), **options)
    return engine
