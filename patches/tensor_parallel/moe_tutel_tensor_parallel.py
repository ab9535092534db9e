"""MoE with Tutel and tensor parallelism: experts compute on parts of several tokens put together.

Why: tensor-parallel ranks hold the same tokens, and in `MOELayer` each of them passes a part of the places in the
    experts' buffer to the experts. The places are the buffer's second dimension. Tutel's buffer has all experts' places
    in the first one, and the second is the width: each rank takes a part of every token, and the experts treat these
    parts as whole tokens. The sizes fit, so there is no error.
How: Tutel's buffer gets the dimensions experts, places, width, as in 0.19.4 and later. Without tensor parallelism, and
    with tensor-parallel experts through 0.13.5, it has the same contents in the same order for what follows. As without
    Tutel, the capacity has to be a multiple of the tensor-parallel ranks: an AssertionError says so, where without the
    patch the width had to be one.
Changes: outputs and gradients of such layers. A checkpoint that was trained without the patch can be resumed, but its
    experts have learned from parts of tokens.
Workaround: Scripts make the `encode` of Tutel's dispatcher return experts, places and width, or leave `use_tutel` out.
    You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_FORWARD = "deepspeed.moe.sharded_moe:MOELayer.forward"
_ENCODED = "self._tutel_dispatcher.encode(reshaped_input)"

PATCH = Patch(
    title="MoE with Tutel + tensor parallelism: experts compute on parts of several tokens",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.4"},
    changes=(Edit(_FORWARD, replace=_ENCODED, code=f"{_ENCODED}.view(E, -1, M)", effect=RAN),),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/8195": "fixed in 0.19.4"},
    fixed_in="0.19.4",
    fixed=(Source(_FORWARD, f"{_ENCODED}.view(E, C, M)"),),
    ranks=2,
)

_TOKENS, _WIDTH, _EXPERTS = 12, 16, 2


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, reference = lab.torch, lab.reference
    from ..moe._experts import provide_tutel, tensor_parallel

    provide_tutel(lab)
    from deepspeed.moe import layer

    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # else parts of the layer are compiled on first use

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            expert = torch.nn.Linear(_WIDTH, _WIDTH)
            self.moe = layer.MoE(_WIDTH, expert, _EXPERTS, k=1, capacity_factor=_EXPERTS, use_rts=False, use_tutel=True)
            for number, each in enumerate(self.moe.deepspeed_moe.experts.deepspeed_experts):
                torch.manual_seed(number)
                each.reset_parameters()

        def forward(self, x: Any) -> Any:
            return self.moe(x)[0]

    model = Model()
    experts = [torch.nn.Linear(_WIDTH, _WIDTH, device="cpu") for _ in model.moe.deepspeed_moe.experts.deepspeed_experts]
    for mine, each in zip(experts, model.moe.deepspeed_moe.experts.deepspeed_experts):
        mine.load_state_dict(each.state_dict())
    tokens = lab.models.regression_batch(0, 0, _TOKENS, _WIDTH)[0]
    with torch.no_grad():
        gates, chosen = (tokens @ model.moe.deepspeed_moe.gate.wg.weight.t()).softmax(dim=1).max(dim=1)
        gates = gates[:, None]
        right = gates * torch.stack([experts[each](token) for each, token in zip(chosen.tolist(), tokens)])
        places = torch.nn.functional.one_hot(chosen, _EXPERTS).cumsum(dim=0)[torch.arange(_TOKENS), chosen] - 1
        buffer = torch.zeros(_EXPERTS, _TOKENS, _WIDTH)  # as many places for each expert as there are tokens
        buffer[chosen, places] = tokens
        halves = [half.reshape(_EXPERTS, -1, _WIDTH) for half in buffer.chunk(2, dim=2)]
        mixed = torch.stack([each(torch.cat([half[i] for half in halves])) for i, each in enumerate(experts)])
        wrong = gates * mixed[chosen, places]

    engine = tensor_parallel(lab, model)
    return reference.compare(
        {"output": engine(tokens.to(lab.device)).detach().cpu()},
        {"output": right},
        {"those of experts that compute on halves of two tokens": {"output": wrong}},
        after="with two tensor-parallel ranks",
        what="the layer's outputs",
    )
