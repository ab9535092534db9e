"""ZeRO++ hpZ: loaded weights are not used; the forward pass uses the previous ones.

Why: with `zero_hpz_partition_size` a second copy of each parameter is partitioned over the ranks of a node, and while
    it exists the parameters are gathered from it. Code that loads weights writes only the first copy. From 0.13.2 to
    0.18.2 the second one survives `load_checkpoint`; from 0.14.3 to 0.18.2 also the end of `GatheredParameters` with a
    modifier_rank, which transformers uses to load a model under zero.Init. Until the next optimizer step, which drops
    the second copies, the model computes with the old weights (under zero.Init: with random ones); a frozen parameter's
    copy is never dropped.
How: `GatheredParameters` also updates the second copy, outside of autograd; `load_checkpoint` drops those of the
    trained parameters, and the next forward pass makes them again. Saving a checkpoint drops them too, which costs one
    more gathering between nodes. A quantized second copy (`zero_quantized_nontrainable_weights`) stays as it is: it
    would be overwritten with numbers that are not quantized.
Changes: the first step after loading and every evaluation before it, with frozen parameters loaded under zero.Init all
    steps, use the loaded weights. A checkpoint written without the patch holds the weights as trained: where a part is
    frozen, the rest was trained beside random weights, which are not in it: repeat such a run.
Workaround: Scripts set `ds_secondary_tensor` of all parameters to None after loading. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, BugPresent, CannotTell, Edit, Patch, Severity, Source

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
            effect=RAN,
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
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/issues/7606": "reported",
        "https://github.com/deepspeedai/DeepSpeed/pull/4906": "introduced for checkpoints in 0.13.2",
        "https://github.com/deepspeedai/DeepSpeed/pull/5613": "introduced for zero.Init in 0.14.3",
        "https://github.com/deepspeedai/DeepSpeed/pull/7707": "fixed in 0.18.3",
    },
    fixed_in="0.18.3",
    fixed=(Source(_EPILOGUE, "self.invalidate_secondary_tensor()"),),
    ranks=2,
    config=lambda job: job.stage == 3 and job.number("zero_optimization", "zero_hpz_partition_size") > 1,
)

_LEARNING_RATE = 0.1


def reproduce(lab: Lab) -> str:
    from packaging.version import Version

    from ..checkpoint._checkpoints import load_whole_files

    lab.require_ranks(2)
    load_whole_files()
    torch, models, reference = lab.torch, lab.models, lab.reference
    if Version(lab.deepspeed.__version__) < Version("0.13.2"):
        raise CannotTell("through 0.13.1 every backward pass uses second copies as old as the model (issue 4851)")
    batches = [models.regression_batch(rank, step=0) for rank in range(2)]
    inputs, targets = (tensor.to(lab.device) for tensor in batches[lab.rank])
    trained = models.MLP(seed=1)
    expected = reference.train(trained, [batches], trained.loss, "SGD", lr=_LEARNING_RATE)
    random, loaded, stepped = (
        model.loss(*batches[lab.rank]).item() for model in (models.MLP(seed=0), models.MLP(seed=1), trained)
    )

    config = {
        "train_batch_size": 2 * len(batches[0][0]),
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
        "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0},
    }
    zero = lab.deepspeed.zero
    model = models.MLP(seed=0)
    zero.Init(module=model, config_dict_or_path=config)
    for name, weights in models.MLP(seed=1).named_parameters():
        with zero.GatheredParameters(model.get_parameter(name), modifier_rank=0):
            if lab.rank == 0:
                model.get_parameter(name).data.copy_(weights)
    engine = lab.initialize(model, config, model_parameters=model.parameters())

    def loss_after(what: str, wrong: float) -> Any:
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        if abs(loss.item() - wrong) < 1e-5 < abs(loss.item() - loaded):
            raise BugPresent(
                f"after {what} the loss is {wrong:.4f}, that of the old weights; with the loaded ones {loaded:.4f}"
            )
        assert abs(loss.item() - loaded) < 1e-5, f"after {what} expected the loss {loaded}, got {loss.item()}"
        return loss

    loss = loss_after("zero.Init and GatheredParameters", random)
    engine.save_checkpoint(str(lab.tmp), tag="loaded")
    for round_ in range(2):
        engine.backward(loss)
        engine.step()
        with torch.no_grad():  # makes the second copies again
            seen = torch.nn.functional.mse_loss(engine(inputs), targets).item()
        assert abs(seen - stepped) < 1e-5, f"after step {round_} expected the loss {stepped}, got {seen}"
        difference = reference.largest_difference(lab.parameters(engine), expected.parameters)
        assert difference.relative < 1e-4, f"after step {round_} {difference}"
        if round_ == 0:
            engine.load_checkpoint(str(lab.tmp), tag="loaded")
            loss = loss_after("load_checkpoint", stepped)
    return f"after zero.Init and after load_checkpoint the loss is that of the loaded weights, {loaded:.4f}"
