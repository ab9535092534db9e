"""ZeRO and TiledMLP with fewer tiles than shards: gradients are not averaged across ranks, or are lost.

Why: `torch.chunk` makes fewer tiles than requested if the last ones would be empty: three for 5 tokens and 4 shards, 63
    for 1,000 tokens and 64 shards. The backward pass of TiledMLP tells ZeRO that the gradients are complete at the tile
    that has the number `shards`, which does not exist. So ZeRO never reduces the gradients of the tiled weights. ZeRO-1
    and ZeRO-2 train them with each rank's own gradient, ZeRO-3 not at all. The loss is correct, and nothing fails.
How: the gradients are complete at the last existing tile. Each rank then reduces them once in each backward pass,
    however many tiles it has.
Changes: jobs with ZeRO whose token counts make fewer tiles than shards: the tiled weights are trained with the gradient
    of all ranks. A checkpoint written without the patch loads, and training continues with this gradient.
Workaround: Scripts pad the sequence to a multiple of the shards, or pass the number of tiles that `torch.chunk` makes.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.runtime.sequence_parallel.ulysses_sp:TiledMLP.backward"

PATCH = Patch(
    title="TiledMLP + ZeRO with fewer tiles than shards: gradients are not averaged across ranks, or are lost",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.0"},
    changes=(
        Edit(
            _BACKWARD,
            replace="i + 1 < shards",
            code="i + 1 < len(x_shards)",
            effect="the gradients of tiled weights were complete at the last tile (unpatched: never reduced)",
            # what ZeRO-3 and ZeRO-1 or 2 set on a parameter
            when="i + 1 == len(x_shards) < shards"
            " and any(hasattr(p, 'ds_id') or hasattr(p, 'grad_accum') for p in compute_params)",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7268": "introduced in 0.17.0",
    },
    present=(
        Source(_BACKWARD, "for i, x_shard in enumerate(x_shards):\n    ..."),
        Source(_BACKWARD, "if i + 1 < shards:\n    ...\nelse:\n    ..."),
        Source(_BACKWARD, "shards = ctx.shards"),
    ),
    ranks=2,
)

_LEARNING_RATE, _WIDTH = 0.1, 16
_LENGTH, _SHARDS = 5, 4  # 3 tiles


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, reference = lab.torch, lab.reference
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import (
            TiledMLP,
        )
    except ImportError:
        raise CannotTell(f"deepspeed {deepspeed.__version__} has no TiledMLP") from None

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, tiled: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.tiled = tiled
            self.first, self.mlp = torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Linear(_WIDTH, _WIDTH)

        def forward(self, x: Any, y: Any) -> Any:
            x = self.first(x)
            if self.tiled:
                x = TiledMLP.apply(lambda mlp, x: mlp(x).tanh(), self.mlp, x, _SHARDS, list(self.mlp.parameters()))
            else:
                x = self.mlp(x).tanh()
            return torch.nn.functional.mse_loss(x, y)

    generator = torch.Generator().manual_seed(0)
    batches = [[torch.randn(1, _LENGTH, _WIDTH, generator=generator) for _ in range(2)] for _ in range(2)]

    def plain(*shares: float) -> dict[str, Any]:
        """After a step in which each rank's gradient of the tiled weights has this share."""
        model = Model(tiled=False)
        parameters = dict(model.named_parameters())
        ranks = [torch.autograd.grad(model(*batch), list(parameters.values())) for batch in batches]
        return {
            name: p.detach()
            - _LEARNING_RATE * sum(s * g for s, g in zip(shares if name.startswith("mlp") else (0.5, 0.5), of))
            for (name, p), of in zip(parameters.items(), zip(*ranks))
        }

    right, untrained = plain(0.5, 0.5), plain(0.0, 0.0)
    first, second = plain(1.0, 0.0), plain(0.0, 1.0)
    reports = []
    for stage in (1, 2, 3):
        model = Model(tiled=True)
        config = {
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        engine.backward(engine(*(each.to(lab.device) for each in batches[lab.rank])))
        engine.step()
        seen = lab.parameters(engine)
        own = {  # each weight from the rank that it is closer to
            name: torch.where((p - first[name]).abs() < (p - second[name]).abs(), first[name], second[name])
            for name, p in seen.items()
        }
        wrong = {"those of each rank's own gradient": own, "those without the tiled weights' gradients": untrained}
        reports.append(reference.compare(seen, right, wrong, after=f"stage {stage}: after one step"))
    return "; ".join(reports)
