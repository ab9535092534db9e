"""MoE with k = 2 and drop_tokens=False: tokens beyond an expert's capacity are dropped nevertheless.

Why: through 0.13.5 `TopKGate` passes its drop_tokens to the gate of k = 1 only. With k = 2 an expert takes no more than
    `capacity_factor` allows, and the remaining tokens reach one expert or none. Nothing fails.
How: the capacity is the largest number of tokens that any rank sends to one expert, as in 0.14.0 and later; the ranks
    that share the layer's experts agree on it by a reduction of one number. Unchanged are layers that drop tokens (the
    default), layers with k = 1, gates used apart from `MoE`, and jobs whose tensor- and expert-parallel sizes do not
    divide each other. With BF16_Optimizer such a model still ends with an AssertionError.
Changes: outputs, losses and gradients of such layers, in training and evaluation: every token reaches its two experts.
    An expert's buffer grows up to the number of tokens of a rank. A checkpoint written without the patch can be
    resumed; the loss jumps, because tokens are no longer dropped.
Workaround: Scripts set `capacity_factor` and `eval_capacity_factor` to half the number of experts, which has room for
    all tokens. You can keep it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from dsfix.patch import CannotTell, Edit, Patch, Severity, Source
from dsfix.process.effects import ran

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODULE = "deepspeed.moe.sharded_moe"
_FORWARD = f"{_MODULE}:TopKGate.forward"
_GATING = f"{_MODULE}:top2gating"
_CALL = "gate_output = top2gating(logits, self.capacity_factor if self.training else self.eval_capacity_factor, {})"


class RoomForAll(int):
    """A gate's min_capacity, with the ranks that have to agree on a capacity for all tokens."""

    groups: tuple[Any, ...] = ()
    multiple = 1


#: gate -> the ranks that share its layer's experts; not in the gate, which can be copied and saved
_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def keep_group(layer: Any, group: Any) -> None:
    """Note the ranks that share the experts of a layer that is to drop no tokens; a script's own gate is left alone."""
    from deepspeed.moe.sharded_moe import TopKGate

    gate = getattr(layer, "gate", None)
    if isinstance(gate, TopKGate) and getattr(gate, "k", 1) == 2 and not getattr(gate, "drop_tokens", True):
        _groups[gate] = group


def min_capacity_of(gate: Any) -> Any:
    """The gate's min_capacity; a RoomForAll if the gate is to drop no tokens."""
    from deepspeed import comm
    from deepspeed.utils import groups

    group = None if gate.drop_tokens else _groups.get(gate)
    if group is None:
        return gate.min_capacity
    room = RoomForAll(gate.min_capacity)
    experts = comm.get_world_size(group)
    tensors, group_of_tensors = _tensor_parallel(groups.mpu)
    if experts > 1:
        room.groups = (group,)
    if tensors > 1:
        if groups._get_expert_model_parallel_world_size() == 1:
            if experts % tensors and tensors % experts:
                return gate.min_capacity  # the ranks of two reductions would not agree
            room.multiple = tensors
        room.groups += (group_of_tensors(),)
    return room


def _tensor_parallel(mpu: Any) -> tuple[int, Any]:
    """How many ranks are tensor-parallel, and a function that returns their group.

    An older mpu says "model" for it. That of a pipeline says "slice", and "model" for the stages as well.
    """
    if mpu is None:
        return 1, None
    kinds = ("tensor_model", "slice")
    kind = next((each for each in kinds if hasattr(mpu, f"get_{each}_parallel_world_size")), "model")
    size = getattr(mpu, f"get_{kind}_parallel_world_size")()
    return size, getattr(mpu, f"get_{kind}_parallel_group")


def room_for(min_capacity: Any, sent: Any, capacity: Any) -> Any:
    """The capacity for all tokens if min_capacity asks for it; sent: [tokens, experts], how often each is sent."""
    if not isinstance(min_capacity, RoomForAll):
        return capacity
    ran(__name__)
    from deepspeed import comm

    room = sent.sum(dim=0).max().clamp(min=1)
    for group in min_capacity.groups:
        comm.all_reduce(room, op=comm.ReduceOp.MAX, group=group)
    return (room + min_capacity.multiple - 1) // min_capacity.multiple * min_capacity.multiple


PATCH = Patch(
    title="MoE with k = 2: drop_tokens=False is ignored, tokens beyond the capacity are dropped",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.14.0"},
    changes=(
        Edit(
            f"{_MODULE}:MOELayer._set_ep_group",
            after="self.ep_group = ep_group",
            code="keep_group(self, ep_group)",
            uses=(keep_group,),
        ),
        Edit(
            _FORWARD,
            replace=_CALL.format("self.min_capacity"),
            code=_CALL.format("min_capacity_of(self)"),
            uses=(min_capacity_of,),
        ),
        Edit(
            _GATING,
            before="mask1 *= torch.lt(locations1, capacity)",
            code="capacity = room_for(min_capacity, mask1 + mask2, capacity)",
            uses=(room_for,),
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/5156": "fixed in 0.14.0"},
    fixed_in="0.14.0",
    fixed=(Source(_GATING, "new_capacity = torch.max(exp_counts)"),),
    ranks=2,
)

_TOKENS, _WIDTH, _EXPERTS, _FACTOR, _LEARNING_RATE = 12, 16, 4, 0.5, 0.1
_OWN = "layer.deepspeed_moe.experts.deepspeed_experts."


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch, models, reference = lab.torch, lab.models, lab.reference
    _ = lab.deepspeed
    from deepspeed.moe import layer, sharded_moe, utils

    if not hasattr(sharded_moe, "gumbel_rsample"):
        raise CannotTell("the noise by which the layer chooses the second expert is elsewhere in this release")
    sharded_moe.gumbel_rsample = lambda shape, device: torch.zeros(shape, device=device)  # else the choice is random
    if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")  # else parts of the layer are compiled on first use

    class Plain(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        """The model in plain PyTorch; an expert takes that many tokens of a rank, the first choices first."""

        def __init__(self, capacity: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head = torch.nn.Linear(_WIDTH, 1)
            self.router = torch.nn.Linear(_WIDTH, _EXPERTS, bias=False)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_EXPERTS))
            self.capacity = capacity

        def forward(self, x: Any) -> Any:
            gates = self.router(x).softmax(dim=1)
            first, second = (torch.nn.functional.one_hot(i, _EXPERTS) for i in gates.topk(2, dim=1).indices.t())
            places = torch.cat([first, second]).cumsum(dim=0) <= self.capacity
            weights = gates * (first * places[: len(x)] + second * places[len(x) :])
            weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).eps)
            return self.head(sum(weights[:, [i]] * expert(x) for i, expert in enumerate(self.experts)))

        def loss(self, inputs: Any, targets: Any) -> Any:
            return torch.nn.functional.mse_loss(self(inputs), targets)

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, ep_size: int) -> None:
            super().__init__()
            same = Plain(0)
            self.head = same.head
            expert = torch.nn.Linear(_WIDTH, _WIDTH)
            self.layer = layer.MoE(
                _WIDTH, expert, _EXPERTS, ep_size, k=2, capacity_factor=_FACTOR, min_capacity=1, drop_tokens=False
            )
            self.layer.deepspeed_moe.gate.wg.load_state_dict(same.router.state_dict())
            own = self.layer.deepspeed_moe.experts.deepspeed_experts
            self.first = lab.rank % ep_size * len(own)
            for number, each in enumerate(own):
                each.load_state_dict(same.experts[self.first + number].state_dict())

        def forward(self, x: Any) -> Any:
            return self.head(self.layer(x)[0])

        def named(self, tensors: dict[str, Any]) -> dict[str, Any]:
            """The tensors with their names in `Plain`."""
            result = {}
            for name, tensor in tensors.items():
                if name.startswith(_OWN):
                    number, _, rest = name[len(_OWN) :].partition(".")
                    name = f"experts.{self.first + int(number)}.{rest}"
                result[name.replace("layer.deepspeed_moe.gate.wg.", "router.")] = tensor
            return result

    batches = [models.regression_batch(rank, 0, _TOKENS, _WIDTH) for rank in range(2)]
    right, wrong = (
        reference.train(model, [batches], model.loss, "SGD", lr=_LEARNING_RATE).parameters
        for model in (Plain(2 * _TOKENS), Plain(int(2 * _FACTOR * _TOKENS / _EXPERTS)))
    )
    for ep_size in (1, 2):
        model = Model(ep_size)
        config = {
            "train_micro_batch_size_per_gpu": _TOKENS,
            "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        }
        split = utils.split_params_into_different_moe_groups_for_optimizer
        parameters = list(split({"params": list(model.parameters()), "name": "all"}))
        engine = lab.initialize(model, config, model_parameters=parameters)
        inputs, targets = (each.to(lab.device) for each in batches[lab.rank])
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
        seen = model.named(lab.parameters(engine))
        said = reference.compare(
            seen,
            {name: right[name] for name in seen},
            {"those of a layer that drops tokens": {name: wrong[name] for name in seen}},
            after=f"after a step with ep_size {ep_size}",
        )
    return str(said)
