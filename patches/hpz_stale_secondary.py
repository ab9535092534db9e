"""ZeRO++ hpZ: loaded weights are not used, the forward pass runs on those from before.

Why: with `zero_hpz_partition_size` a second copy of each parameter is spread over the ranks of a node, and as long as
    it is there the parameters are gathered from it. What loads weights writes the first copy only. From 0.13.2 to
    0.18.2 the second one survives `load_checkpoint`; from 0.14.3 to 0.18.2 also the end of `GatheredParameters` with a
    modifier_rank, by which transformers loads a model under zero.Init. Up to the next optimizer step, which drops the
    second copies, the model computes with the old weights (under zero.Init: with random ones); a frozen parameter's
    copy is never dropped.
How: `GatheredParameters` also renews the second copy, outside of autograd; `load_checkpoint` drops those of the trained
    parameters, to be made anew by the next forward pass. Saving a checkpoint drops them too: one more gathering between
    nodes. A second copy that was quantized (`zero_quantized_nontrainable_weights`) stays as it is: it would be
    overwritten with numbers that are not quantized.
Changes: the first step after loading, and every evaluation before it, computes with the loaded weights; with frozen
    parameters that were loaded under zero.Init, all steps do. A checkpoint written without the patch holds the weights
    as they were trained: where all are trained, one step was made by gradients of the wrong weights, and only an
    optimizer's moments remember it. Where a part is frozen, the rest was trained beside random weights, which are not
    in the checkpoint: such a run is to be repeated.
Upstream: https://github.com/deepspeedai/DeepSpeed/issues/7606, brought for checkpoints by
    https://github.com/deepspeedai/DeepSpeed/pull/4906 (0.13.2) and for zero.Init by
    https://github.com/deepspeedai/DeepSpeed/pull/5613 (0.14.3), fixed by
    https://github.com/deepspeedai/DeepSpeed/pull/7707 (0.18.3).
Retire: when DeepSpeed 0.18.2 is no longer supported here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_INIT = "deepspeed.runtime.zero.partition_parameters:Init"
_EPILOGUE = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.checkpoint_event_epilogue"

PATCH = Patch(
    title="ZeRO++ hpZ: weights loaded under zero.Init or by load_checkpoint are not used",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.13.2,<0.18.3"},
    changes=(
        Edit(
            f"{_INIT}._partition",
            replace="self._partition_param_sec(param)",
            code="self._partition_param_sec(param, has_been_updated=has_been_updated"
            " and not hasattr(param.ds_secondary_tensor, 'ds_quant_scale'))",
        ),
        Edit(
            f"{_INIT}._partition_param_sec",
            replace="param.contiguous()",
            code="param.detach().contiguous()",
        ),
        Edit(
            _EPILOGUE,
            before="if len(self.persistent_parameters) > 0:\n    ...",
            code="self.invalidate_secondary_tensor()",
        ),
    ),
    symptom="",
    upstream=(
        "https://github.com/deepspeedai/DeepSpeed/issues/7606",
        "https://github.com/deepspeedai/DeepSpeed/pull/4906",
        "https://github.com/deepspeedai/DeepSpeed/pull/5613",
        "https://github.com/deepspeedai/DeepSpeed/pull/7707",
    ),
    fixed_in="0.18.3",
    fixed=(Source(_EPILOGUE, "self.invalidate_secondary_tensor()"),),
    ranks=2,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from packaging.version import Version

    from dsfix.lab.models import MLP, regression_batch
    from dsfix.lab.reference import largest_difference, train

    if Version(lab.deepspeed.__version__) < Version("0.13.2"):
        raise CannotTell("to 0.13.1 the second copies are as old as the model in every backward pass (issue 4851)")
    batches = [regression_batch(rank, step=0) for rank in range(2)]
    inputs, targets = (tensor.to(lab.device) for tensor in batches[lab.rank])
    trained = MLP(seed=1)
    expected = train(trained, [batches], trained.loss, "SGD", lr=_LEARNING_RATE)
    random, loaded, stepped = (model.loss(*batches[lab.rank]).item() for model in (MLP(seed=0), MLP(seed=1), trained))

    config = {
        "train_batch_size": 2 * len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0},
    }
    zero = lab.deepspeed.zero
    model = MLP(seed=0)
    zero.Init(module=model, config_dict_or_path=config)
    for name, weights in MLP(seed=1).named_parameters():
        with zero.GatheredParameters(model.get_parameter(name), modifier_rank=0):
            if lab.rank == 0:
                model.get_parameter(name).data.copy_(weights)
    engine = lab.initialize(model, config, model_parameters=model.parameters())

    def loss_after(what: str, wrong: float) -> Any:
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        if abs(loss.item() - wrong) < 1e-5 < abs(loss.item() - loaded):
            raise BugPresent(
                f"after {what} the loss is {wrong:.4f}, the old weights'; the loaded ones' is {loaded:.4f}"
            )
        assert abs(loss.item() - loaded) < 1e-5, f"after {what} the loss is {loss.item()}, not {loaded}"
        return loss

    loss = loss_after("zero.Init and GatheredParameters", random)
    engine.save_checkpoint(str(lab.tmp), tag="loaded")
    for round_ in range(2):
        engine.backward(loss)
        engine.step()
        with torch.no_grad():  # the second copies are made anew
            seen = torch.nn.functional.mse_loss(engine(inputs), targets).item()
        assert abs(seen - stepped) < 1e-5, f"after step {round_} the loss is {seen}, not {stepped}"
        difference = largest_difference(lab.parameters(engine), expected.parameters)
        assert difference.relative < 1e-4, f"after step {round_} {difference}"
        if round_ == 0:
            os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # to 0.15.4 with torch >= 2.6; the file is our own
            engine.load_checkpoint(str(lab.tmp), tag="loaded")
            loss = loss_after("load_checkpoint", stepped)
    return f"after zero.Init and after load_checkpoint the loss is that of the loaded weights, {loaded:.4f}"
