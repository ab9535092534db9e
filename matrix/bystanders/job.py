"""The argument of a scenario: models, batches, an engine, and the notes of results. Imports torch."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dsfix.lab import Lab, models
from dsfix.lab.models import regression_batch, token_batch
from matrix.bystanders import space
from matrix.bystanders.plain import Plain

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Mapping[str, Any]]] = {
    "SGD": (torch.optim.SGD, space.SGD),
    "AdamW": (torch.optim.AdamW, space.ADAM),
}
Batch = tuple[torch.Tensor, torch.Tensor]


class MLP(models.MLP):  # type: ignore[misc,unused-ignore]
    """With a smooth activation: rounding switches no unit on or off, so half precision stays close to fp32."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        block: Any
        for block in self.blocks:
            block[2] = nn.Tanh()


class Branches(models.Branches):  # type: ignore[misc,unused-ignore]
    """Branches of that MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = MLP(), MLP(seed=1)


class Job:
    """One rank of a job: in plain PyTorch in fp32 with `plain`, otherwise with DeepSpeed's engine and the setting.

    notes: (label, value) in order; a value is an array, number, string or None.
    """

    MLP, Branches, Transformer = MLP, Branches, models.Transformer

    def __init__(self, lab: Lab, setting: space.Setting, plain: bool) -> None:
        self.torch, self._lab, self.setting, self.plain = lab.torch, lab, setting, plain
        self.device, self.rank, self.world_size = lab.device, lab.rank, lab.world_size
        self.accumulation = int(setting["accumulation"])
        self.stage = int(setting["stage"])
        self.half = setting["precision"] != "fp32"
        self._held = _DTYPES[setting["precision"].partition(",")[0]]
        self.dtype = torch.float32 if plain else self._held
        self.notes: list[tuple[str, Any]] = []
        self._initial: dict[int, dict[str, torch.Tensor]] = {}

    @property
    def tmp(self) -> Path:
        """A scratch directory shared by all ranks."""
        return self._lab.tmp

    def engine(
        self,
        model: nn.Module,
        parameters: Iterable[Any] | None = None,
        optimizer: Callable[[list[Any]], torch.optim.Optimizer] | None = None,
        **config: Any,
    ) -> Any:
        """DeepSpeed's engine for a model on the CPU in fp32, or its plain PyTorch equivalent.

        parameters: parameters or groups, as for an optimizer; all by default. optimizer: creates a client optimizer
        for them; by default the setting's optimizer is used. config: DeepSpeed config keys, merged over the setting's.
        """
        with torch.no_grad():  # round to half precision, so that all variants start from the same weights
            for parameter in model.parameters():
                parameter.copy_(parameter.to(self._held))
        given = list(model.parameters() if parameters is None else parameters)
        initial = self._whole(model)
        kind = self.setting["optimizer"].rpartition(" ")[2]
        make, options = _OPTIMIZERS[kind]
        if self.plain:
            model.to(self.device)  # some optimizers create their state immediately
            client = optimizer(given) if optimizer else make(given, **options)
            merged = space.config(self.setting)
            space._merge(merged, config)
            engine: Any = Plain(model, client, merged, self.half)
        else:
            whole = space.config(self.setting)
            space._merge(whole, config)
            arguments: dict[str, Any] = {"model_parameters": given}
            if optimizer or kind != self.setting["optimizer"]:
                whole.pop("optimizer", None)
                arguments = {"optimizer": optimizer(given) if optimizer else make(given, **options)}
            engine = self._lab.initialize(model, whole, **arguments)
        self._initial[id(engine)] = initial
        return engine

    def model(self, forward: Callable[..., Any], **parts: Any) -> nn.Module:
        """A module with these submodules and parameters, whose forward is `forward(module, …)`."""
        return _Composed(forward, parts)

    def batch(self, number: int) -> Batch:
        """This rank's micro-batch with that number: inputs [4, 16] and targets [4, 1]."""
        inputs, targets = regression_batch(self.rank, number)
        return inputs.to(self.device, self.dtype), targets.to(self.device)

    def batches(self, step: int) -> list[Batch]:
        """The micro-batches of an optimizer step; their number is the setting's accumulation."""
        return [self.batch(step * self.accumulation + micro) for micro in range(self.accumulation)]

    def loss(self, model: Callable[..., torch.Tensor], batch: Batch, *arguments: Any) -> torch.Tensor:
        """Mean squared error, in fp32."""
        inputs, targets = batch
        return functional.mse_loss(model(inputs, *arguments).float(), targets)

    def train(
        self,
        engine: Any,
        step: int,
        loss: Callable[..., torch.Tensor] | None = None,
        backward: Callable[..., Any] | None = None,
    ) -> None:
        """One ordinary optimizer step, with notes.

        loss: computes a batch's loss; default `self.loss(engine, …)`. backward: default `engine.backward`.
        """
        for micro, batch in enumerate(self.batches(step)):
            value = loss(batch) if loss else self.loss(engine, batch)
            (backward or engine.backward)(value)
            engine.step()
            self.note(f"step {step}: loss of micro-batch {micro}", value)
        self.look(engine, f"step {step}")

    def steps(self, engine: Any, steps: Iterable[int], *given: Any, **options: Any) -> None:
        """Ordinary optimizer steps, each as `train` with these arguments."""
        for step in steps:
            self.train(engine, step, *given, **options)

    def train_on_tokens(self, engine: Any, step: int) -> None:
        """One optimizer step of a `Transformer` on next-token prediction."""

        def loss(_: Batch) -> torch.Tensor:
            tokens, following = (each.to(self.device) for each in token_batch(self.rank, next(numbers)))
            return functional.cross_entropy(engine(tokens).float().flatten(0, 1), following.flatten())

        numbers = iter(range(step * self.accumulation, (step + 1) * self.accumulation))
        self.train(engine, step, loss)

    def resume(
        self, make: Callable[[int], Any], convert: Callable[[str], str] = str, optimizer: bool = True, **load: bool
    ) -> None:
        """Two steps and a checkpoint, from which a second engine resumes for three more.

        make: creates the first engine for 0, the second for 1. convert: maps the checkpoint's tag to the one to load.
        optimizer, load: as for `load`.
        """
        engine = make(0)
        self.steps(engine, range(2))
        self.save(engine, "two")
        tag = convert("two")
        engine = make(1)
        self.load(engine, tag, optimizer, **load)
        self.look(engine, "loaded")
        self.steps(engine, range(2, 5))

    def look(self, engine: Any, label: str) -> None:
        """Note how far the parameters have moved, the gradient norm and the number of skipped steps."""
        with self._lab_unseen():
            now = self.weights(engine)
            initial = self._initial[id(engine)]
            self.note(f"{label}: movement", torch.cat([(now[name] - initial[name]).flatten() for name in sorted(now)]))
            if not self.plain:
                for name, tensors in _masters(engine):
                    self.bits(f"{label}: {name}", tensors)
            self.bits(f"{label}: gradient norm", _number(engine.get_global_grad_norm()))
            self.bits(f"{label}: skipped steps", int(engine.skipped_steps))

    def parameters(self, engine: Any) -> dict[str, torch.Tensor]:
        """The full parameters by name, as detached fp32 copies on the CPU. Call it on all ranks."""
        return self._whole(engine.module)

    def _whole(self, model: nn.Module) -> dict[str, torch.Tensor]:
        parameters = dict(model.named_parameters())
        if any(hasattr(parameter, "ds_id") for parameter in parameters.values()):  # partitioned by an engine
            with self._lab_unseen():
                tensors: dict[str, torch.Tensor] = self._lab.parameters(SimpleNamespace(module=model))
            return tensors
        return {name: each.detach().to("cpu", torch.float32, copy=True) for name, each in parameters.items()}

    def weights(self, engine: Any) -> dict[str, torch.Tensor]:
        """Like `parameters`, but the optimizer's fp32 weights where DeepSpeed provides them per parameter."""
        tensors = self.parameters(engine)
        if self.plain or not self.half:
            return tensors
        get = importlib.import_module("deepspeed.utils").safe_get_full_fp32_param
        without_zero = _masters_without_zero(engine.optimizer)
        for name, parameter in engine.module.named_parameters():
            weight = without_zero.get(parameter)
            with contextlib.suppress(AttributeError, KeyError):  # frozen, on some releases
                weight = get(parameter) if weight is None else weight
            if weight is not None:
                tensors[name] = weight.detach().to("cpu", torch.float32, copy=True).view_as(tensors[name])
        return tensors

    def save(self, engine: Any, tag: str) -> None:
        """Write a checkpoint into `tmp`. Call it on all ranks."""
        engine.save(tag) if self.plain else engine.save_checkpoint(str(self.tmp / "checkpoint"), tag=tag)

    def load(self, engine: Any, tag: str, optimizer: bool = True, module_only: bool = False) -> None:
        """Load that checkpoint, with or without the optimizer's states. Call it on all ranks.

        module_only: only the weights, with DeepSpeed's `load_module_only`.
        """
        if self.plain:
            engine.load(tag, optimizer and not module_only)
            return
        path, _ = engine.load_checkpoint(
            str(self.tmp / "checkpoint"),
            tag=tag,
            load_optimizer_states=optimizer,
            load_lr_scheduler_states=optimizer,
            load_module_only=module_only,
        )
        assert path is not None, f"no checkpoint {tag}"

    def note(self, label: str, value: Any) -> None:
        """Note a tensor, number or string to be compared with plain PyTorch's, within rounding."""
        self._put(label, value)

    def bits(self, label: str, value: Any) -> None:
        """Note a value to be compared only with and without dsfix."""
        self._put(f"[bits] {label}", value)

    def _put(self, label: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            with self._lab_unseen():
                value = value.detach().to("cpu", torch.float32).numpy().copy()
        self.notes.append((label, value))

    def survived(self, label: str, error: BaseException) -> None:
        """Note an exception that the script catches: its type and first line."""
        self.bits(label, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}")

    # set by rank.py to Watch.unseen
    _lab_unseen: Callable[[], Any]


class _Composed(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, forward: Callable[..., Any], parts: Mapping[str, Any]) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self._forward(self, *args)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _masters_without_zero(optimizer: Any) -> dict[torch.Tensor, torch.Tensor]:
    """Half-precision parameters and their fp32 weights."""
    masters: dict[torch.Tensor, torch.Tensor] = {}
    for number, parameters in enumerate(getattr(optimizer, "fp16_groups", ())):
        if hasattr(optimizer, "fp32_groups_flat"):
            weights = optimizer.fp32_groups_flat[number].detach().split([parameter.numel() for parameter in parameters])
        elif hasattr(optimizer, "fp32_groups"):
            weights = optimizer.fp32_groups[number]
        else:
            continue
        masters.update(zip(parameters, weights))
    return masters


def _masters(engine: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """This rank's fp32 weights, wherever the release keeps them."""
    for name in (
        *("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"),
        *("fp32_groups_flat", "fp32_groups"),
    ):
        groups = getattr(engine.optimizer, name, None)
        for number, each in enumerate(groups or ()):
            for index, tensor in enumerate(each if isinstance(each, (list, tuple)) else [each]):
                if isinstance(tensor, torch.Tensor) and tensor.numel():
                    yield f"{name}[{number}][{index}]", tensor
