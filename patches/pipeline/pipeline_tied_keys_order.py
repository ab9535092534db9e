"""Pipeline with several keys of tied layers: ranks make their groups in different orders, and tie the wrong weights.

Why: PipelineModule makes the process groups of tied layers in the order of a set of their keys. A set of strings is
    ordered differently in each process. Where the orders differ, the ranks' groups do not match: the job hangs at
    start-up or, if layers of two keys are in the same stages, one layer's weights and gradients are exchanged with the
    other's.
How: the groups are made in the order in which the keys appear in the list of layers, which is the same on all ranks.
    Layers of one key, or of none, are unchanged; so are several keys where the orders happened to agree.
Changes: jobs whose ranks had different orders, which changes from start to start. A checkpoint of such a job has
    different weights in each stage of a key: when it is loaded, all stages take those of the first one, with or without
    the patch, and training should be restarted.
Workaround: All ranks are started with the same PYTHONHASHSEED, or the keys define a hash that is the same in all
    processes. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_INDEX = "deepspeed.runtime.pipe.module:PipelineModule._index_tied_modules"

PATCH = Patch(
    title="Pipeline with several keys of tied layers: hangs at start-up, or ties the wrong weights",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.16.6"},
    changes=(
        Edit(
            _INDEX,
            replace="tie_keys = set(s.key for s in specs if isinstance(s, TiedLayerSpec))",
            code="tie_keys = dict.fromkeys(s.key for s in specs if isinstance(s, TiedLayerSpec))",
            effect=RAN,  # whether the ranks' orders differ, only all of them know
            when="len({s.key for s in specs if isinstance(s, TiedLayerSpec)}) > 1",
        ),
    ),
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7208": "fixed in 0.16.6"},
    fixed_in="0.16.6",
    fixed=(Source(_INDEX, "sorted(tie_keys)"),),
    ranks=2,
)

_LEARNING_RATE = 0.05


def reproduce(lab: Lab) -> str:
    lab.require_ranks(2)
    torch = lab.torch
    from . import _pipeline as pipeline

    class Key(str):
        """Has a hash that differs between ranks, as those of strings do, and not by chance."""

        def __hash__(self) -> int:
            return (str(self) == "second") ^ lab.rank

    class Weight(torch.nn.Linear):  # type: ignore[name-defined,misc,unused-ignore]
        def __init__(self, seed: int) -> None:
            super().__init__(16, 16, bias=False)
            with torch.no_grad():
                self.weight.copy_(torch.randn(16, 16, generator=torch.Generator().manual_seed(seed)) / 4)

    def loss(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(outputs.tanh().mean(1, keepdim=True), targets)

    def plain(order: str) -> dict[str, Any]:
        layers = {"a": Weight(0), "b": Weight(1)}
        optimizer = torch.optim.SGD([p for layer in layers.values() for p in layer.parameters()], lr=_LEARNING_RATE)
        batches = iter(pipeline.batches())
        for _ in range(pipeline.STEPS):
            optimizer.zero_grad()
            for _ in range(pipeline.MICRO_BATCHES):
                outputs, targets = next(batches)
                for each in order:
                    outputs = layers[each](outputs)
                (loss(outputs, targets) / pipeline.MICRO_BATCHES).backward()
            optimizer.step()
        return {name: layer.weight.detach() for name, layer in layers.items()}

    keys = Key("first"), Key("second")
    tied = [lab.deepspeed.pipe.TiedLayerSpec(key, Weight, seed) for seed, key in enumerate(keys)]
    module = lab.deepspeed.pipe.PipelineModule(
        layers=[*tied, *tied], num_stages=2, loss_fn=loss, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": len(pipeline.batches()[0][1]),
        "gradient_accumulation_steps": pipeline.MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": _LEARNING_RATE}},
    }
    engine = lab.initialize(module, config, model_parameters=list(module.parameters()))
    source = iter(pipeline.batches())
    for _ in range(pipeline.STEPS):
        engine.train_batch(data_iter=source)
    right, other = plain("abab"), plain("abba")
    if lab.rank:  # its layers have taken the other ones' weights
        other = {"a": other["b"], "b": other["a"]}
    names = {"tied_modules.first.weight": "a", "tied_modules.second.weight": "b"}
    return lab.reference.compare(
        lab.parameters(engine),
        {name: right[key] for name, key in names.items()},
        {"those of layers that are tied crosswise": {name: other[key] for name, key in names.items()}},
        after=f"after {pipeline.STEPS} steps",
    )
