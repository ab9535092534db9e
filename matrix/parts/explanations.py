"""Hand-written explanations of what differs and no patch changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dsfix.versions import satisfies
from matrix.parts.record import Line

MEANING = "documented"  # or refused with a message
DIAGNOSIS = "diagnosis"  # a bug that no patch can fix
OPEN = "open"  # a bug without a patch so far


@dataclass(frozen=True)
class Explanation:
    """Explains what `part`, a name, shows on `releases`. seen: a regular expression that is searched in it."""

    part: str
    kind: str
    text: str
    releases: str = ""
    seen: str = ""

    def explains(self, line: Line) -> bool:
        fits = self.part == line.part and satisfies(self.releases, line.release)
        return fits and re.search(self.seen, line.seen) is not None


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "checkpointing/checkpoint",
        OPEN,
        "A second backward pass through a checkpoint fails: the first one drops what was saved.",
        seen="two backward passes=True.*NoneType",
    ),
    Explanation(
        "checkpointing/non_reentrant_checkpoint",
        OPEN,
        "Under autocast the recomputation runs in fp32, and the backward pass fails on two dtypes.",
        seen="autocast=True.*same dtype",
    ),
    Explanation(
        "data/batch_by_seqlens",
        OPEN,
        "The last sample is never in a batch, and a sample that fits to no other ends the epoch.",
        seen="samples that are used|not enough datapoints",
    ),
    Explanation(
        "data/DeepSpeedDataSampler", OPEN, "One global batch more than num_epochs ask for.", seen="micro-batches:"
    ),
    Explanation(
        "data/RandomLTDScheduler",
        OPEN,
        "The first lengths are rounded down below the minimum, to 0.",
        seen="length at step",
    ),
    Explanation(
        "losses/FPDT_FFN", OPEN, "Without add_bias the second bias has no gradient.", seen="gradient of tensor 4"
    ),
    Explanation("losses/FPDT_LogitsLoss", OPEN, "Labels of -100 have a gradient.", seen="gradient of tensor|value"),
    Explanation(
        "losses/TiledFusedLogitsLoss",
        OPEN,
        "The weights' gradients do not follow what the loss is multiplied by, and none are there where x needs none.",
        seen="loss times=0.5|x needs gradient=False",
    ),
    Explanation(
        "losses/TiledMLP",
        OPEN,
        "Where the input needs no gradient, the weights have none.",
        seen="x needs gradient=False",
    ),
    Explanation(
        "losses/sequence_tiled_compute",
        OPEN,
        "compute_params=None fails; where the input needs no gradient, the weights have none; the mean divides the "
        "incoming gradient in place, also that of other losses.",
        seen="compute_params=None|x needs gradient=False|a second loss=True",
    ),
    Explanation("moe/used_token", OPEN, "k = 2 and more ignore used_token.", seen="k=[23].*routes"),
    Explanation(
        "tensor_parallel/ColumnParallel, RowParallel",
        OPEN,
        "A gradient that is not contiguous is not reduced over the ranks.",
        seen="gradient is off",
    ),
    Explanation("tools/csv_monitor", OPEN, "A job that goes on writes the header again.", seen="processes=2"),
    Explanation(
        "tools/flops profiler",
        OPEN,
        "A matrix times a vector counts k times too much, broadcast batches too little.",
        seen="flops",
    ),
    Explanation(
        "moe/split_params_into_different_moe_groups_for_optimizer",
        OPEN,
        "Groups without a name fail, and experts of groups with one name get the last one's options.",
        seen="KeyError: 'name'|rates",
    ),
    Explanation("tools/OnDevice", OPEN, "One within another stays on.", seen="another within=True"),
    Explanation(
        "ulysses/UlyssesSPDataLoaderAdapter",
        OPEN,
        "A tensor of more than two dimensions is not gathered.",
        seen="further=features",
    ),
    Explanation(
        "zero/clip_grad_norm_", OPEN, "The gradient of a scalar parameter cannot be clipped.", seen="broadcast shape"
    ),
)


def of(line: Line, explanations: Sequence[Explanation] = EXPLANATIONS) -> Explanation | None:
    return next((each for each in explanations if each.explains(line)), None)
