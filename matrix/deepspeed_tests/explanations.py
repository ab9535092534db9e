"""Hand-written explanations of tests that are worse with dsfix although no patch has a bug."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dsfix.versions import satisfies


class Kind(enum.Enum):
    """The kind of explanation."""

    ASSERTS_BUG = "asserts the bug"  # upstream has since changed both the code and the test
    FLAKY = "flaky"  # also fails sometimes without dsfix


@dataclass(frozen=True)
class Explanation:
    """Explains why tests whose ids start with `test` are worse on `releases`. patch: the patch they fail with."""

    test: str
    releases: str
    kind: Kind
    text: str
    patch: str = ""

    def explains(self, test: str, release: str) -> bool:
        return test.startswith(self.test) and satisfies(self.releases, release)


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "unit/moe/test_moe.py::TestTopkGate",
        "<0.19.1",
        Kind.ASSERTS_BUG,
        "expects an expert to keep its largest logits; in 0.19.1 it expects the largest probabilities",
        "moe_topk_probs_drops_routes",
    ),
    Explanation(
        "unit/runtime/zero/test_zero_tensor_fragment.py::TestTensorFragmentUpdate::test_zero_fragments",
        "==0.16.9",
        Kind.FLAKY,
        "hangs sometimes in torch.distributed.new_group, which the test calls on gloo; also without dsfix",
    ),
)


def fitting(test: str, release: str, explanations: Sequence[Explanation]) -> Explanation | None:
    """The first explanation that applies, if any."""
    return next((explanation for explanation in explanations if explanation.explains(test, release)), None)
