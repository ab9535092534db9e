"""TiledMLP and other tiled computation with ZeRO-2, or ZeRO-1 and overlap_comm: gradients are not averaged.

Why: tiled computation runs one backward pass per tile and tells ZeRO that a parameter's gradient is complete only after
    the last one. From 0.17.0 to 0.18.5 ZeRO copies the incomplete gradients into its bucket anyway, but omits them from
    the list from which it computes each gradient's place in the bucket. So it averages other parts of the bucket: on
    several ranks the tiled parameters, and all that follow in the same bucket, are updated with one rank's gradient,
    divided by the number of ranks, or with a mixture. The loss is correct, and nothing fails.
How: an incomplete gradient is not copied into the bucket, as in 0.18.6 and later. It stays in `.grad`, where the next
    tile adds to it. Less is copied; what is computed and communicated is the same.
Changes: jobs on several ranks that tell ZeRO which parameters are tiled (`compute_params`): the gradients of these
    parameters and of others in the same bucket. A checkpoint written without the patch can be resumed; its weights come
    from the gradients of a part of the data.
Workaround: None in the script; ZeRO-1 without `overlap_comm`, or ZeRO-3, helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FILL = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.reduce_independent_p_g_buckets_and_remove_grads"
_INCOMPLETE = "if not getattr(param, 'ds_grad_is_ready', True):\n    return"

PATCH = Patch(
    title="TiledMLP, sequence_tiled_compute + ZeRO-2 (ZeRO-1: overlap_comm): gradients are not averaged across ranks",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.0,<0.18.6"},
    changes=(
        Edit(
            _FILL,
            before="param_id = self.get_param_id(param)",
            code=_INCOMPLETE,
            effect="gradients of single tiles stayed out of the bucket (unpatched: they displace others)",
            when="not getattr(param, 'ds_grad_is_ready', True)"
            " and dist.get_world_size(group=self.dp_process_group) > 1",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7268": "introduced in 0.17.0",
        "https://github.com/deepspeedai/DeepSpeed/pull/7829": "fixed in 0.18.6",
    },
    fixed_in="0.18.6",
    present=(Source(_FILL, "if getattr(param, 'ds_grad_is_ready', True):\n    ..."),),
    fixed=(Source(_FILL, _INCOMPLETE),),
    ranks=2,
)

_LEARNING_RATE, _LENGTH, _WIDTH, _TILES = 0.1, 8, 16, 4


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, reference = lab.torch, lab.reference
    deepspeed = lab.deepspeed
    try:
        from deepspeed.runtime.sequence_parallel import (
            ulysses_sp,
        )
    except ImportError:
        raise CannotTell(f"{deepspeed.__version__} has no tiled computation") from None

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, tiled: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.tiled = tiled
            # the copies of the last one's gradient take more room than all that is on the list
            self.first, self.last = torch.nn.Linear(_WIDTH, _WIDTH, bias=False), torch.nn.Linear(_WIDTH, _WIDTH)

        def forward(self, x: Any, y: Any) -> Any:
            x = self.first(x)
            if self.tiled:
                own = list(self.last.parameters())
                x = ulysses_sp.TiledMLP.apply(lambda mlp, x: mlp(x).tanh(), self.last, x, _TILES, own)
            else:
                x = self.last(x).tanh()
            return torch.nn.functional.mse_loss(x, y)

    generator = torch.Generator().manual_seed(0)
    batches = [[torch.randn(1, _LENGTH, _WIDTH, generator=generator) for _ in range(2)] for _ in range(2)]

    def plain(rate: float, *ranks: int) -> dict[str, Any]:
        model = Model(tiled=False)
        result: dict[str, Any] = reference.train(
            model, [[batches[rank] for rank in ranks]], model, "SGD", lr=rate
        ).parameters
        return result

    right = plain(_LEARNING_RATE, 0, 1)
    first, second = (plain(_LEARNING_RATE / 2, rank) for rank in range(2))
    reports = []
    for options in ({"stage": 2}, {"stage": 2, "overlap_comm": True}, {"stage": 1, "overlap_comm": True}):
        model = Model(tiled=True)
        config = {"optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}}, "zero_optimization": options}
        engine = lab.initialize(model, config, model_parameters=model.parameters())
        engine.backward(engine(*(each.to(lab.device) for each in batches[lab.rank])))
        engine.step()
        seen = lab.parameters(engine)
        parts = {  # each weight from the rank that it is closer to
            name: torch.where((own - first[name]).abs() < (own - second[name]).abs(), first[name], second[name])
            for name, own in seen.items()
        }
        wrong = {"those of half of one rank's gradient": parts}
        reports.append(reference.compare(seen, right, wrong, after=f"{options}: after one step"))
    return "; ".join(reports)
