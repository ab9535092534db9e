"""Why a test is worse with dsfix, where no patch is to blame; by hand."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet


class Kind(enum.Enum):
    """What it is."""

    ASSERTS_BUG = "asserts the bug"  # what upstream has changed since, in the test, too
    UNSTEADY = "unsteady"  # fails at times, without dsfix, too


@dataclass(frozen=True)
class Explanation:
    """Explains why tests whose ids begin with `test` are worse on `releases`. patch: the one that they fail with."""

    test: str
    releases: str
    kind: Kind
    text: str
    patch: str = ""

    def explains(self, test: str, release: str) -> bool:
        return test.startswith(self.test) and SpecifierSet(self.releases).contains(release)


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "unit/moe/test_moe.py::TestTopkGate",
        "<0.19.1",
        Kind.ASSERTS_BUG,
        "expects an expert's largest logits to stay; 0.19.1's expects the largest probabilities",
        "moe_topk_probs_drops_routes",
    ),
    Explanation(
        "unit/runtime/zero/test_zero_tensor_fragment.py::TestTensorFragmentUpdate::test_zero_fragments",
        "==0.16.9",
        Kind.UNSTEADY,
        "hangs at times in torch.distributed.new_group, which the test itself calls on gloo; without dsfix, too",
    ),
)


def fitting(test: str, release: str, explanations: Sequence[Explanation]) -> Explanation | None:
    return next((each for each in explanations if each.explains(test, release)), None)
