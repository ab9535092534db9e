"""TiledMLP: the backward pass fails for an input or a gradient that is not contiguous, with several samples.

Why: the backward pass joins samples and tokens with `view`, which cannot copy. A slice of the sequence such as
    `x[:, 1:]`, or a transpose, cannot be joined without a copy. Neither can the gradient where the output is transposed
    or averaged over the sequence. It raises RuntimeError: view size is not compatible with input tensor's size and
    stride.
How: `reshape` copies such a tensor. All others it joins without a copy, as before.
Workaround: Scripts call `contiguous()` on the input, and on the gradient in a hook of the output:
    `output.register_hook(torch.Tensor.contiguous)`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity

from ._tiled import module_of, train

if TYPE_CHECKING:
    from dsfix.lab import Lab

_BACKWARD = "deepspeed.runtime.sequence_parallel.ulysses_sp:TiledMLP.backward"


def _joined(tensor: str, what: str) -> Edit:
    joined = f"{tensor}.reshape(-1, hidden_size)"
    return Edit(
        _BACKWARD,
        replace=f"{tensor}.view(-1, hidden_size)",
        code=joined,
        effect=f"{what} was copied to join its samples (unpatched: RuntimeError)",
        when=f"not {tensor}.is_contiguous() and {joined}.data_ptr() != {tensor}.data_ptr()",
    )


PATCH = Patch(
    title="TiledMLP, several samples: view size is not compatible, if the input or its gradient is not contiguous",
    severity=Severity.CRASH,
    affects={"deepspeed": ">=0.17.3,<0.19.7"},
    changes=(_joined("x", "the input"), _joined("grads[0]", "the gradient")),
    symptom=r"ulysses_sp\.py\S*, line \d+, in backward\n(.*\n){1,3}RuntimeError: view size is not compatible with",
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7422": "introduced in 0.17.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/8348": "fixed in 0.19.7",
    },
    fixed_in="0.19.7",
)

_WIDTH, _SAMPLES, _LENGTH, _TILES = 16, 2, 5, 2
_LEARNING_RATE, _STEPS = 0.1, 2


def reproduce(lab: Lab) -> str:
    torch, reference = lab.torch, lab.reference
    tiles = module_of(lab).TiledMLP

    def whole(mlp: Any, x: Any) -> Any:
        return mlp(x).tanh()

    def tiled(mlp: Any, x: Any) -> Any:
        return tiles.apply(whole, mlp, x, _TILES, list(mlp.parameters()))

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, how: Any, before: Any, after: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.below, self.mlp = (torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(2))
            self.how, self.before, self.after = how, before, after

        def forward(self, x: Any, y: Any) -> Any:
            x = self.after(self.how(self.mlp, self.before(self.below(x))))
            return torch.nn.functional.mse_loss(x, y.expand_as(x))

    def same(x: Any) -> Any:
        return x

    jobs = {
        "a contiguous input": (same, torch.Tensor.clone),
        "a slice": (lambda x: x[:, 1:], torch.Tensor.clone),
        "a transpose": (lambda x: x.transpose(0, 1), torch.Tensor.clone),
        "the gradient of a transpose": (same, lambda x: x.transpose(0, 1)),
        "the gradient of a mean": (same, lambda x: x.mean(1)),
    }
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(_STEPS, _SAMPLES, _LENGTH, _WIDTH, generator=generator)
    batches = list(zip(inputs, torch.randn(_STEPS, _WIDTH, generator=generator)))
    reports = []
    for name, form in jobs.items():
        model = Model(whole, *form)
        right = reference.train(model, [[batch] for batch in batches], model, "SGD", lr=_LEARNING_RATE).parameters
        for stage in (0, 3):
            try:
                seen = train(lab, Model(tiled, *form), batches, _LEARNING_RATE, stage)
            except RuntimeError as error:
                if "view size is not compatible" in str(error):
                    raise BugPresent(f"{name}: {error}") from error
                raise
            reports.append(reference.compare(seen, right, {}, after=f"{name}, stage {stage}: after {_STEPS} steps"))
    return "; ".join(reports)
