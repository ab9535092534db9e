"""torch_autocast with ZeRO-3: a parameter that is used twice in the forward pass loses the gradient of one use.

Why: with `torch_autocast` parameters are gathered in bf16 or fp16, and then cast back to fp32. In 0.17.2 to 0.17.5 a
    parameter that is gathered alone briefly has the half-precision data. The change of dtype makes autograd forget
    where it accumulates the gradient: if the parameter is gathered again before it is used again, as tied embeddings
    are, each use has its own node and its own reduction. The second reduction replaces the first, silently; where both
    are in one bucket, a bare AssertionError in `__reduce_and_partition_ipg_grads` ends the job. Parameters that are
    used once, or stay gathered, are not affected.
How: the parameter keeps its dtype while it is gathered, as in 0.17.6: the half-precision data are cast before they
    become its own.
Changes: the gradients of such parameters in such jobs, from the first step on; all others give the same numbers. A
    checkpoint written without the patch loads, but its tied weights were trained on a part of their gradients.
Workaround: Scripts set `stage3_param_persistence_threshold` above the size of the tied weight, which then stays
    gathered. You can keep it, but it takes memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.runtime.zero.partition_parameters"
_GATHER = f"{_MODULE}:Init._convert_to_deepspeed_param.<locals>.all_gather_coalesced"
_OWN = "param.data = param_buffer.narrow(0, 0, param.ds_numel).view(param.ds_shape).to(param.device)"
_WAIT = f"{_MODULE}:AllGatherHandle.wait"


def keep_dtype(parameter: Any, gathered: Any) -> None:
    """Give the parameter the data that are being gathered; those of another dtype when they are cast."""
    if gathered.dtype == parameter.dtype:
        parameter.data = gathered
    else:
        ran(__name__)  # whether it is used again shows later
        parameter.dsfix_gathered = gathered


def gathered_data(parameter: Any) -> Any:
    """The gathered data of the parameter, in the dtype in which they were gathered."""
    return parameter.__dict__.pop("dsfix_gathered", parameter.data)


PATCH = Patch(
    title="torch_autocast with ZeRO-3: tied or reused parameters lose part of their gradient",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.17.2,<0.17.6"},
    changes=(
        Edit(
            _GATHER,
            replace=_OWN,
            code="keep_dtype(param, param_buffer.narrow(0, 0, param.ds_numel).view(param.ds_shape).to(param.device))",
            uses=(keep_dtype,),
        ),
        Edit(
            _WAIT,
            replace="self.__param.data = self.__param.data.to(self.__original_dtype)",
            code="self.__param.data = gathered_data(self.__param).to(self.__original_dtype)",
            uses=(gathered_data,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7534": "fixed in 0.17.6"},
    fixed_in="0.17.6",
    fixed=(Source(_GATHER, "if original_dtype == allgather_dtype:\n    ...\nelse:\n    ..."),),
    config=lambda job: job.stage == 3 and job.may_be("torch_autocast"),
    ranks=2,
)

_WIDTH, _LEARNING_RATE = 16, 0.25


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    if Version(lab.deepspeed.__version__) < Version("0.17.2"):
        raise CannotTell(f"deepspeed {lab.deepspeed.__version__} has no torch_autocast for ZeRO-3")

    class Tied(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        """An embedding, a layer, and the embedding's weight once more."""

        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.first = torch.nn.Embedding(_WIDTH, _WIDTH)
            self.second, self.head = (torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(2))
            for layer in (self.first, self.second):
                layer.weight.data.copy_(torch.randn(_WIDTH, _WIDTH, generator=generator) / 4)
            self.head.weight = self.first.weight

        def forward(self, tokens: Any) -> Any:
            return self.head(self.second(self.first(tokens)))

    def loss(output: Any, rank: int) -> Any:
        targets = lab.models.regression_batch(rank, 0, size=_WIDTH, width=_WIDTH)[0]
        return torch.nn.functional.mse_loss(output.float(), targets.to(lab.device))

    tokens = torch.arange(_WIDTH, device=lab.device)

    def gradients(alone: str) -> dict[str, Any]:
        """Of plain PyTorch, averaged over the ranks; alone: only this use of the tied weight counts."""
        sums = dict.fromkeys(("first.weight", "second.weight"), 0.0)
        for rank in range(2):
            model = Tied().to(lab.device)
            tied = model.first.weight
            first = tied.detach() if alone == "last" else tied
            last = tied.detach() if alone == "first" else tied
            with torch.autocast(lab.device.type, torch.bfloat16):
                embedded = torch.nn.functional.embedding(tokens, first)
                output = torch.nn.functional.linear(model.second(embedded), last)
            loss(output, rank).backward()
            for name, weight in model.named_parameters():
                sums[name] = sums[name] + weight.grad / 2
        return sums

    before = dict(Tied().to(lab.device).named_parameters())

    def weights(alone: str = "") -> dict[str, Any]:
        return {name: before[name].detach() - _LEARNING_RATE * each for name, each in gradients(alone).items()}

    model = Tied()
    config = {
        "train_micro_batch_size_per_gpu": _WIDTH,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": _WIDTH},
    }
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(loss(engine(tokens), lab.rank))
    engine.step()
    seen = lab.parameters(engine)
    result: str = lab.reference.compare(
        seen,
        weights(),
        {f"those of the {use} use of the tied weight alone": weights(use) for use in ("first", "last")},
        within=1e-3,
        after="after one step",
    )
    return result
