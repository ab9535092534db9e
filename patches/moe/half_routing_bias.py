"""bf16 or fp16: the bias with which an MoE router selects experts is rounded: tokens go to other experts.

Why: DeepSeek-V3, GLM-4.5 and their relatives choose experts by a score plus `e_score_correction_bias`, a buffer that
    transformers keeps in fp32 (`_keep_in_fp32_modules_strict`), because its values differ by less than half precision
    can represent. zero.Init makes each buffer in half precision, so the checkpoint's values are rounded as they are
    loaded; and through 0.19.1 the engine casts the buffers of every model. Nothing fails.
How: where a model names `e_score_correction_bias` in `_keep_in_fp32_modules_strict`, zero.Init makes these buffers fp32
    again at the end of the model's `__init__`, before values are loaded, and they keep their dtype through the engine's
    cast. A router's results keep their dtype, because the sum only selects experts. Other buffers that a model names
    are cast as before: a table of positions in fp32 would end jobs that add it to half activations.
Changes: which experts tokens are sent to, as in plain PyTorch, for such models. A checkpoint of DeepSpeed that was
    written without the patch has rounded biases, which are loaded as they are: load them again from the original model.
Workaround: Scripts put the biases back in fp32 after `deepspeed.initialize`. You can keep it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from dsfix.patch import Edit, Patch, Severity, Source
from dsfix.process.effects import took_effect

if TYPE_CHECKING:
    from dsfix.lab import Lab

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine._configure_distributed_model"
_INIT = "deepspeed.runtime.zero.partition_parameters:Init._post_init_method"
_BIAS = "e_score_correction_bias"


def make_biases_fp32(model: Any) -> None:
    """Give the routing biases that the model keeps in fp32 that dtype, if zero.Init has made them in another one."""
    import torch

    for router in _routers(model):
        if router._buffers[_BIAS].dtype in (torch.float16, torch.bfloat16):
            took_effect(__name__, "a router's bias stayed in fp32 (unpatched: rounded)")
            router._buffers[_BIAS].data = router._buffers[_BIAS].data.float()


def biases_in_fp32(model: Any) -> list[tuple[Any, Any]]:
    """The routers of the model, each with its bias, where that is to stay in fp32 and is."""
    import torch

    found = {id(router): router for each in model.modules() for router in _routers(each)}
    biases = [(router, router._buffers[_BIAS]) for router in found.values()]
    return [(router, bias) for router, bias in biases if bias.dtype == torch.float32]


def put_back(biases: list[tuple[Any, Any]]) -> None:
    """Undo a cast of these biases."""
    for router, bias in biases:
        if router._buffers[_BIAS].dtype != bias.dtype:
            took_effect(__name__, "a router's bias stayed in fp32 (unpatched: rounded)")
            router._buffers[_BIAS] = bias


def _routers(model: Any) -> Iterator[Any]:
    """The modules with such a bias, if this very module names it; not those of modules inside that name it."""
    named = getattr(model, "_keep_in_fp32_modules_strict", None)
    if isinstance(named, Collection) and _BIAS in named:
        for each in model.modules():
            if _BIAS in each._buffers and each._buffers[_BIAS] is not None:  # TorchScript's have no `get`
                yield each


PATCH = Patch(
    title="bf16 or fp16: an MoE router's selection bias (e_score_correction_bias) is rounded",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.8"},
    changes=(
        Edit(
            _INIT,
            after="for name, param in module.named_parameters(recurse=False):\n    ...",
            code="make_biases_fp32(module)",
            uses=(make_biases_fp32,),
        ),
        Edit(
            _ENGINE,
            after="self._set_client_model(model)",
            code="_dsfix_biases = biases_in_fp32(self.module)",
            uses=(biases_in_fp32,),
        ),
        Edit(
            _ENGINE,
            before="if not (self.dont_change_device or is_zero_init_model):\n    ...",
            code="put_back(_dsfix_biases)",
            uses=(put_back,),
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8066": "related: from 0.19.2 on only zero.Init casts buffers",
    },
    fixed_in="0.19.8",
    fixed=(Source(_INIT, "self._keep_in_fp32(module)"),),
)

_BIASES = (8.0, 8.004, 8.012, 8.008)  # all of them 8.0 in bf16


def _model(torch: Any) -> Any:
    class Router(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer(_BIAS, torch.zeros(len(_BIASES)))

        def forward(self) -> Any:
            return self.e_score_correction_bias.argmax()

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        _keep_in_fp32_modules_strict = (_BIAS,)

        def __init__(self) -> None:
            super().__init__()
            self.router = Router()
            self.experts = torch.nn.Parameter(torch.ones(len(_BIASES), 4))

        def forward(self, x: Any) -> Any:
            return (x * self.experts[self.router()]).sum()

    return Model


def _trained(lab: Lab, stage: int) -> dict[str, Any]:
    """The parameters after a step on a model whose biases were loaded as transformers loads them."""
    torch = lab.torch
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
    }
    make = _model(torch)
    if stage == 3:
        with lab.deepspeed.zero.Init(config_dict_or_path=config):
            model = make()
    else:
        model = make().bfloat16()
        model.router.float()
    bias = model.router.e_score_correction_bias
    bias.copy_(torch.tensor(_BIASES, device=bias.device))
    engine = lab.initialize(model, config, model_parameters=model.parameters())
    engine.backward(engine(torch.ones(1, 4, dtype=torch.bfloat16, device=lab.device)))
    engine.step()
    found = lab.parameters(engine)
    assert isinstance(found, dict)
    return found


def reproduce(lab: Lab) -> str:
    torch = lab.torch

    def expected(dtype: Any) -> dict[str, Any]:
        model = _model(torch)()
        model.router.to(dtype).e_score_correction_bias.copy_(torch.tensor(_BIASES))
        model(torch.ones(1, 4)).backward()
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        return {name: each.detach() for name, each in model.named_parameters()}

    right, rounded = expected(torch.float32), expected(torch.bfloat16)
    if torch.equal(right["experts"], rounded["experts"]):
        raise AssertionError("the biases do not differ in bf16")
    for stage in (3, 1):
        wrong = {"those with the bias in bf16": rounded}
        said = lab.reference.compare(_trained(lab, stage), right, wrong, after=f"after a step of ZeRO-{stage}")
    return said
