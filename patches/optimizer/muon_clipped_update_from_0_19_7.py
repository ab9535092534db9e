"""The bug of muon_clipped_update, whose docstring describes it, from 0.19.7 on.

Why: since 0.19.7 another function, too, makes a rank's part of the gradients.
How: as muon_clipped_update; momentum is kept where the step is made.
Changes: as there.
Workaround: The config sets `"gradient_clipping": 0`. That can stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsfix.patch import Patch, Severity, Source

from . import _muon_clipping as muon

if TYPE_CHECKING:
    from dsfix.lab import Lab

PATCH = Patch(
    title="Muon + ZeRO-1/2 + gradient clipping: the update is clipped, not the gradient (from 0.19.7 on)",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.19.7"},
    changes=(*muon.put_off("get_flat_partition"), *muon.put_off("_get_flat_partition_unpadded"), muon.STEP),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/8439": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/7776": "proposed fix",
    },
    present=(Source(f"{muon.OPTIMIZER}.step", "self._commit_muon_momentum()"),),
    config=muon.clips,
)


def reproduce(lab: Lab) -> str:
    return muon.clipped(lab)
