"""ZeRO and TiledMLP with fewer tiles than shards: gradients are not averaged over the ranks, or are lost.

Why: `torch.chunk` makes fewer tiles than it is asked for where the last ones would be empty: three of 5 tokens for 4
    shards, 63 of 1000 for 64. The backward pass of TiledMLP tells ZeRO that the gradients are complete at the tile that
    has the number `shards`, which does not exist. So ZeRO never reduces the gradients of the tiled weights. ZeRO-1 and
    ZeRO-2 train them with each rank's own gradient, ZeRO-3 not at all. The loss is correct, and nothing fails.
How: the gradients are complete at the last tile that there is. Each rank then reduces them once in each backward pass,
    however many tiles it has.
Changes: jobs with ZeRO whose numbers of tokens make fewer tiles than shards: the tiled weights are trained with the
    gradient of all ranks. A checkpoint written without the patch loads, and training goes on with this gradient.
Workaround: Scripts pad the sequence to a multiple of the shards, or pass the number of tiles that `torch.chunk` makes.
    Both can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.runtime.sequence_parallel.ulysses_sp:TiledMLP.backward"

PATCH = Patch(
    title="TiledMLP + ZeRO with fewer tiles than shards: gradients are not averaged over the ranks, or are lost",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.0"},
    changes=(
        Edit(
            _BACKWARD,
            replace="i + 1 < shards",
            code="i + 1 < len(x_shards)",
            effect="the gradients of tiled weights were complete at the last tile; ZeRO would never have reduced them",
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

_LEARNING_RATE, _STEPS, _WIDTH = 0.1, 2, 16
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
    shape = (1, _LENGTH, _WIDTH)
    steps = [[[torch.randn(shape, generator=generator) for _ in range(2)] for _ in range(2)] for _ in range(_STEPS)]

    def plain(own: Any) -> dict[str, Any]:
        """own: the ranks whose gradients train the tiled weights, with this factor."""
        model = Model(tiled=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
        for ranks in steps:
            optimizer.zero_grad()
            gradients = [torch.autograd.grad(model(*batch), list(model.parameters())) for batch in ranks]
            for name, p, pair in zip(dict(model.named_parameters()), model.parameters(), zip(*gradients)):
                weights = own if name.startswith("mlp") else (0.5, 0.5)
                p.grad = sum(weight * each for weight, each in zip(weights, pair))
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    right = plain((0.5, 0.5))
    reports = []
    for stage in (1, 2, 3):
        model = Model(tiled=True)
        config = {
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        }
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        for ranks in steps:
            engine.backward(engine(*(each.to(lab.device) for each in ranks[lab.rank])))
            engine.step()
        seen = lab.parameters(engine)
        print("DBG", stage, {k: ((seen[k].cpu()-right[k]).abs().max().item(), {str(w): (seen[k].cpu()-plain(w)[k]).abs().max().item() for w in [(1.,0.),(0.,1.),(.5,0.),(0.,.5),(0.,0.)]}) for k in right}, flush=True)
        reports.append("x")
    raise SystemExit(3)
