"""TiledFusedLogitsLoss: an evaluation between two steps adds to the training gradients, or fails.

Why: TiledFusedLogitsLoss computes gradients in its forward pass even where none are wanted, as under `torch.no_grad()`.
    The gradients of an evaluation are added to the gradients of the head's weights, and the next step uses them. If the
    head is frozen, as with LoRA, the evaluation raises RuntimeError: element 0 of tensors does not require grad and
    does not have a grad_fn.
How: the gradients are computed if the hidden states require them, or if the module is in training mode and its weights
    require them. Training is as before.
Changes: jobs that evaluate with TiledFusedLogitsLoss while they train: the head is trained only with the training data.
    A checkpoint written without the patch loads, and training continues from there.
Workaround: Evaluations compute the loss without TiledFusedLogitsLoss, or are followed by `engine.zero_grad()`.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, Edit, Patch, Severity, Source
from dsfix.process.effects import ran, took_effect

from ._tiled import module_of

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "deepspeed.runtime.sequence_parallel.ulysses_sp:TiledFusedLogitsLoss.forward"


def is_training(module: Any, of_inputs: bool, output: Any) -> bool:
    """of_inputs: whether the inputs require gradients, which they do not in an evaluation.

    What is no module does not tell whether it is in training mode, and may train a head above frozen layers.
    """
    if not of_inputs and not output.requires_grad:
        took_effect(__name__, "no gradients were computed in an evaluation (unpatched: RuntimeError)")
    elif not of_inputs and not getattr(module, "training", True):
        ran(__name__)  # the gradients of an evaluation may be discarded
    return of_inputs or (output.requires_grad and getattr(module, "training", True))


PATCH = Patch(
    title="TiledFusedLogitsLoss: an evaluation adds to the training gradients, or fails",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": "==0.17.4"},
    changes=(
        Edit(
            _FORWARD,
            replace="torch.autograd.backward(output, incoming_grad)",
            code="if is_training(self, x_requires_grad, output):\n    torch.autograd.backward(output, incoming_grad)",
            uses=(is_training,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/7477": "fixed in 0.17.5",
    },
    fixed_in="0.17.5",
    fixed=(Source(_FORWARD, "torch.zeros_like(x) if x_requires_grad else None"),),
)

_WIDTH, _TILES = 16, 2
_LEARNING_RATE, _STEPS = 0.1, 3


def reproduce(lab: Lab) -> str:
    torch, reference = lab.torch, lab.reference
    tiles = module_of(lab, "TiledFusedLogitsLoss").TiledFusedLogitsLoss

    def whole(self: Any, x: Any, y: Any) -> Any:
        return torch.nn.functional.mse_loss(self.head(x), y)

    def tiled(self: Any, x: Any, y: Any) -> Any:
        return tiles.apply(whole, self, x[None], y[None], None, _TILES, list(self.head.parameters()), "mean")

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, loss: Any, trained: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.below, self.head = torch.nn.Linear(16, _WIDTH), torch.nn.Linear(_WIDTH, 1)
            self.head.requires_grad_(trained)
            self.loss = loss

        def forward(self, x: Any, y: Any) -> Any:
            return self.loss(self, self.below(x), y)

    batches = [lab.models.regression_batch(0, step) for step in range(_STEPS)]
    other = lab.models.regression_batch(1, 0)  # of the evaluations

    def plain(trained: bool, added: bool) -> dict[str, Any]:
        """added: whether an evaluation's gradients are added to the head's."""
        model = Model(whole, trained)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=_LEARNING_RATE)
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            if added and step:
                hidden = model.below(other[0]).detach()
                whole(model, hidden, other[1]).backward()
            model(*batch).backward()
            optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    reports = []
    for trained in (True, False):
        model = Model(tiled, trained)
        config = {"optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}}}
        engine = lab.initialize(model, config, model_parameters=[p for p in model.parameters() if p.requires_grad])
        for batch in batches:
            engine.train()
            engine.backward(engine(*(each.to(lab.device) for each in batch)))
            engine.step()
            engine.eval()
            try:
                with torch.no_grad():
                    seen = engine(*(each.to(lab.device) for each in other))
            except RuntimeError as error:
                if "does not require grad" in str(error) and not trained:
                    raise BugPresent(str(error)) from error
                raise
            with torch.no_grad():
                right = whole(engine.module, engine.module.below(other[0].to(lab.device)), other[1].to(lab.device))
            assert torch.allclose(seen, right, rtol=1e-5), f"the evaluation's loss is {seen}, not {right}"
        told = reference.compare(
            lab.parameters(engine),
            plain(trained, False),
            {"those with an evaluation's gradients": plain(trained, True)} if trained else {},
            after=f"after {_STEPS} steps, each with an evaluation",
        )
        reports.append(f"{'' if trained else 'head frozen: '}{told}")
    return "; ".join(reports)
