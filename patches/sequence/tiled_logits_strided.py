"""TiledFusedLogitsLoss fails if the hidden states, labels or mask are not contiguous, with several samples.

Why: samples and tokens are joined with `view`, which cannot copy. A slice of the sequence, as the shift of the labels
    is, such as `labels[:, 1:]` and `x[:, :-1]`, cannot be joined without a copy. Neither can a transpose. It raises
    RuntimeError: view size is not compatible with input tensor's size and stride.
How: `reshape` copies such a tensor. All others it joins without a copy, as before.
Workaround: Scripts call `contiguous()` on them. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

from ._tiled import module_of, train

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "deepspeed.runtime.sequence_parallel.ulysses_sp:TiledFusedLogitsLoss.forward"


def _joined(tensor: str, rest: str, what: str) -> Edit:
    joined = f"{tensor}.reshape(-1{rest})"
    return Edit(
        _FORWARD,
        replace=f"{tensor}.view(-1{rest})",
        code=joined,
        effect=f"{what} copied to join samples (unpatched: RuntimeError)",
        when=f"not {tensor}.is_contiguous() and {joined}.data_ptr() != {tensor}.data_ptr()",
    )


PATCH = Patch(
    title="TiledFusedLogitsLoss, several samples: view size is not compatible, if x, y or mask is not contiguous",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.4,<0.19.7"},
    changes=(
        _joined("x", ", *x.shape[2:]", "the hidden states were"),
        _joined("y", ", *y.shape[2:]", "the labels were"),
        _joined("mask", "", "the mask was"),
    ),
    symptom=r"ulysses_sp\.py\S*, line \d+, in forward\n(.*\n){1,3}RuntimeError: view size is not compatible with",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7437": "introduced in 0.17.4",
        "https://github.com/deepspeedai/DeepSpeed/pull/8362": "fixed in 0.19.7",
    },
    fixed_in="0.19.7",
)

_WIDTH, _WORDS, _SAMPLES, _LENGTH, _TILES = 16, 12, 2, 5, 2
_LEARNING_RATE, _STEPS = 0.5, 2


def reproduce(lab: Lab) -> str:
    torch, reference = lab.torch, lab.reference
    tiles = module_of(lab, "TiledFusedLogitsLoss").TiledFusedLogitsLoss

    def whole(self: Any, x: Any, y: Any, mask: Any) -> Any:
        losses = torch.nn.functional.cross_entropy(self.head(x).view(-1, _WORDS), y.reshape(-1), reduction="none")
        return (losses * mask.reshape(-1)).mean()

    def tiled(self: Any, x: Any, y: Any, mask: Any) -> Any:
        return tiles.apply(whole, self, x, y, mask, _TILES, list(self.head.parameters()), "mean")

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, loss: Any, forms: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.below, self.head = torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Linear(_WIDTH, _WORDS)
            self.loss, self.forms = loss, forms

        def forward(self, *batch: Any) -> Any:
            x, y, mask = batch
            return self.loss(self, *(form(each) for form, each in zip(self.forms, (self.below(x), y, mask))))

    def sliced(tensor: Any) -> Any:
        return tensor[:, 1:]

    def copied(tensor: Any) -> Any:
        return sliced(tensor).contiguous()

    def transposed(tensor: Any) -> Any:
        return tensor.transpose(0, 1)

    jobs = {
        "contiguous tensors": (copied, copied, copied),
        "sliced hidden states": (sliced, copied, copied),
        "sliced labels": (copied, sliced, copied),
        "a sliced mask": (copied, copied, sliced),
        "transposed tensors": (transposed, transposed, transposed),
    }
    generator = torch.Generator().manual_seed(0)
    shape = (_STEPS, _SAMPLES, _LENGTH)
    x, y = torch.randn(*shape, _WIDTH, generator=generator), torch.randint(_WORDS, shape, generator=generator)
    batches = list(zip(x, y, y > 2))
    reports = []
    for name, forms in jobs.items():
        model = Model(whole, forms)
        right = reference.train(model, [[batch] for batch in batches], model, "SGD", lr=_LEARNING_RATE).parameters
        for stage in (0, 3):
            try:
                seen = train(lab, Model(tiled, forms), batches, _LEARNING_RATE, stage)
            except RuntimeError as error:
                if "view size is not compatible" in str(error):
                    raise BugPresent(f"{name}: {error}") from error
                raise
            reports.append(reference.compare(seen, right, {}, after=f"{name}, stage {stage}: after {_STEPS} steps"))
    return "; ".join(reports)
