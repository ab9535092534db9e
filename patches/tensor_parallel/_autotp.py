"""Tiny models named as transformers names its own, sharded by AutoTP or whole. Importing this imports torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dsfix.lab import reference
from dsfix.patch import BugPresent

if TYPE_CHECKING:
    from dsfix.lab import Lab

WIDTH, HEADS = 64, 8
_SIZE = WIDTH // HEADS
Outputs = Mapping[str, torch.Tensor]
_NOTHING: Mapping[str, Outputs] = {}


@dataclass(frozen=True)
class Kind:
    """What a model and its parts are called, and the order of its fused attention weight.

    groups: heads of keys and values. by_group: the weight has the queries, the key and the value of a group, then those
    of the next one; else all queries, all keys, all values. wide: the width inside the MLP.
    """

    model: str
    layer: str
    attention: str
    fused: str
    output: str
    mlp: str
    up: str
    down: str
    groups: int
    by_group: bool
    wide: int = 4 * WIDTH


FALCON = Kind(
    *("Falcon", "FalconDecoderLayer", "self_attention", "query_key_value", "dense"),
    *("mlp", "dense_h_to_4h", "dense_4h_to_h", 2, True),
)
MPT = Kind("Mpt", "MptBlock", "attn", "Wqkv", "out_proj", "ffn", "up_proj", "down_proj", HEADS, False)

#: an MLP's width that is not a multiple of 64, by which init_inference divides it
UNEVEN = Kind(
    *("Bloom", "BloomBlock", "self_attn", "query_key_value", "out_proj"),
    *("mlp", "up_proj", "down_proj", HEADS, True),
    wide=200,
)


class _Attention(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.num_heads, self.num_kv_heads = HEADS, kind.groups  # AutoTP divides them
        self.add_module(kind.fused, nn.Linear(WIDTH, (HEADS + 2 * kind.groups) * _SIZE, bias=False))
        self.add_module(kind.output, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fused = getattr(self, self.kind.fused)(x)  # [batch, length, …]
        if self.kind.by_group:
            each = fused.unflatten(2, (self.num_kv_heads, -1, _SIZE)).permute(0, 2, 3, 1, 4)
            queries, keys, values = each[:, :, :-2], each[:, :, -2:-1], each[:, :, -1:]
        else:
            queries, keys, values = (
                part.unflatten(2, (self.num_heads, 1, _SIZE)).permute(0, 2, 3, 1, 4) for part in fused.chunk(3, dim=2)
            )
        weights = (queries @ keys.transpose(-1, -2)).softmax(dim=-1)  # [batch, groups, queries, length, length]
        mixed = (weights @ values).flatten(1, 2).transpose(1, 2).flatten(2)
        result: torch.Tensor = getattr(self, self.kind.output)(mixed)
        return result


class NotingAttention(nn.Module):  # type: ignore[misc,unused-ignore]
    """Attention that notes its sizes under the names of MPT's own code.

    from_weights: whether the forward pass takes its sizes from what the weights give, not from those names.
    """

    def __init__(self, from_weights: bool = False) -> None:
        super().__init__()
        self.from_weights, self.head_dim = from_weights, _SIZE
        self.d_model, self.n_heads, self.kv_n_heads = WIDTH, HEADS, HEADS
        self.Wqkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fused = self.Wqkv(x)
        width = fused.shape[2] // 3 if self.from_weights else self.d_model
        each = width if self.from_weights else self.kv_n_heads * self.head_dim
        queries, keys, values = (
            part.unflatten(2, (-1, self.head_dim)).transpose(1, 2) for part in fused.split([width, each, each], dim=2)
        )
        mixed = (queries @ keys.transpose(-1, -2)).softmax(dim=-1) @ values
        result: torch.Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return result


class _MLP(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.add_module(kind.up, nn.Linear(WIDTH, kind.wide, bias=False))
        self.add_module(kind.down, nn.Linear(kind.wide, WIDTH, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(self, self.kind.down)(getattr(self, self.kind.up)(x).tanh())
        return result


class _Layer(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.add_module(kind.attention, _Attention(kind))
        self.add_module(kind.mlp, _MLP(kind))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + getattr(self, self.kind.attention)(x)
        result: torch.Tensor = x + getattr(self, self.kind.mlp)(self.norm(x))
        return result


class _Body(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.h = nn.ModuleList([layer])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.h[0](x)
        return result


class _Causal(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, kind: Kind, body: nn.Module) -> None:
        super().__init__()
        self.transformer = body
        self.lm_head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.config = SimpleNamespace(num_attention_heads=HEADS, num_kv_heads=kind.groups, n_heads=HEADS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.lm_head(self.transformer(x))
        return result


def causal(kind: Kind) -> Any:
    """A model of that kind with one layer: float [batch, length, WIDTH] -> [batch, length, WIDTH]."""

    def named(name: str, base: type[nn.Module]) -> Any:
        return type(name, (base,), {"__module__": f"modeling_{kind.model.lower()}"})

    torch.manual_seed(0)
    body = named(f"{kind.model}Model", _Body)(named(kind.layer, _Layer)(kind))
    return named(f"{kind.model}ForCausalLM", _Causal)(kind, body).eval()


class _ImageLayer(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, own: int | None) -> None:
        super().__init__()
        self.own = own
        self.up_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.own is None:
            wide = self.up_proj(x)
        else:
            parts = enumerate(self.up_proj.weight.chunk(2))
            wide = torch.cat([(x if rank == self.own else x.detach()) @ part.t() for rank, part in parts], dim=-1)
        result: torch.Tensor = self.down_proj(wide.tanh())
        return result


class _ImageModel(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, own: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_ImageLayer(own)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers[0](x)
        return result


class _Image(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self, own: int | None) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, WIDTH, kernel_size=2, stride=2)
        self.model = _ImageModel(own)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(self.embedding(images).flatten(2).transpose(1, 2))  # stored transposed
        return result


def image_model(own: int | None = None) -> Any:
    """Patch embeddings of images and an MLP: [batch, 3, height, width] -> [batch, patches, WIDTH].

    own: the gradient of the embeddings comes from this half of the MLP only.
    """
    torch.manual_seed(0)
    return _Image(own)


def noting_mpt(from_weights: bool = False) -> Any:
    """That model of MPT's kind with a `NotingAttention`."""
    model = causal(MPT)
    torch.manual_seed(1)
    model.transformer.h[0].attn = NotingAttention(from_weights)
    return model.eval()


def outputs(model: Any) -> dict[str, torch.Tensor]:
    """What a model, or an engine, makes of the same inputs."""
    inputs = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(0))
    device = next(model.parameters()).device
    with torch.no_grad():
        return {"output": model(inputs.to(device)).cpu()}


def shard(lab: Lab, model: Any, **options: Any) -> Any:
    """The engine of `deepspeed.init_inference` with the model's layers sharded by AutoTP, on all ranks.

    options: of the config's `tensor_parallel`.
    """
    _ = lab.deepspeed
    with names_of_transformers():
        return lab.deepspeed.init_inference(
            model,
            dtype=torch.float32,
            tensor_parallel={"tp_size": lab.world_size, **options},
            replace_with_kernel_inject=False,
        )


def compare(seen: Outputs, right: Outputs, wrong: Mapping[str, Outputs] = _NOTHING) -> str:
    """`reference.compare` for what `outputs` returns."""
    return reference.compare(seen, right, wrong, after="with tp_size 2", what="the model's outputs")


def compare_sharded(lab: Lab, kind: Kind, parts: int, pieces: int, wrong: str) -> str:
    """That a sharded model of that kind computes what the whole one does.

    parts, pieces: the bug takes the fused weight for so many parts, and puts together the first of so many pieces of
    each, then the second ones, and so on. wrong: what that is.

    Raises:
        BugPresent: it computes what a model with such a weight does.
    """
    model = causal(kind)
    right = outputs(model)
    weight = model.get_parameter(f"transformer.h.0.{kind.attention}.{kind.fused}.weight")
    divided = [part.chunk(pieces) for part in weight.detach().clone().chunk(parts)]
    with torch.no_grad():
        weight.copy_(torch.cat([part[number] for number in range(pieces) for part in divided]))
    return compare(outputs(shard(lab, causal(kind))), right, {f"those of {wrong}": outputs(model)})


def compare_uneven(lab: Lab) -> str:
    """That a sharded model with `UNEVEN` widths computes what the whole one does.

    Raises:
        BugPresent: its weights cannot be split, because the shards' sizes leave a rest.
    """
    right = outputs(causal(UNEVEN))
    try:
        engine = shard(lab, causal(UNEVEN))
    except RuntimeError as error:
        if "split_with_sizes expects split_sizes to sum exactly to 200" in str(error):
            raise BugPresent(str(error)) from error
        raise
    return compare(outputs(engine), right)


@contextmanager
def names_of_transformers() -> Iterator[None]:
    """AutoTP imports transformers, for the name of one class; a stand-in where it is not installed."""
    try:
        import transformers  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        modules = SimpleNamespace(modeling_gpt2=SimpleNamespace(GPT2Block=type("GPT2Block", (), {})))
        stand_in: Any = ModuleType("transformers")
        stand_in.models = SimpleNamespace(gpt2=modules)
        sys.modules["transformers"] = stand_in
        try:
            yield
        finally:
            del sys.modules["transformers"]
    else:
        yield
