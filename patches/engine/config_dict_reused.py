"""A config dict used for two engines: the second one trains with a different Adam than the config says.

Why: through 0.19.0 the engine takes `torch_adam` and `adam_w_mode` out of the dict that the script passed as its
    config. The second engine made from the same dict finds neither: instead of torch's Adam it gets FusedAdam or
    DeepSpeedCPUAdam, and "Adam" with `adam_w_mode` false becomes AdamW, with a different weight decay. Jobs with two
    models, searches over hyperparameters and cross-validation make several engines. Nothing fails.
How: the engine removes the two from its own copy. Unlike with upstream's fix, other code of that engine still reads the
    parameters without the two: ZenFlow's optimizer would not accept them.
Changes: the second and later engines made from one dict: their optimizer is the configured one. A checkpoint that such
    an engine wrote without the patch has the moments of the other Adam, which the configured one continues with.
Workaround: Scripts give each engine its own `copy.deepcopy(config)`. You can keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_CONFIGURE = "deepspeed.runtime.engine:DeepSpeedEngine._configure_basic_optimizer"

PATCH = Patch(
    title="A config dict used for two engines: the second one loses torch_adam and adam_w_mode",
    severity=Severity.WRONG_RESULT,
    affects={"deepspeed": ">=0.12.0,<0.19.1"},
    changes=(
        Edit(
            _CONFIGURE,
            after="optimizer_parameters = self.optimizer_params()",
            code="if optimizer_parameters is not None:\n"
            "    optimizer_parameters = self._config.optimizer_params = dict(optimizer_parameters)",
            effect=RAN,  # whether the dict is used again, nothing shows yet
            when="'torch_adam' in (optimizer_parameters or ()) or 'adam_w_mode' in (optimizer_parameters or ())",
        ),
    ),
    upstream={
        "https://github.com/deepspeedai/DeepSpeed/pull/8010": "fixed in 0.19.1",
    },
    fixed_in="0.19.1",
    fixed=(Source(_CONFIGURE, "dict(self.optimizer_params() or {})"),),
)

_STEPS = 3
_ADAM = {"lr": 0.01, "weight_decay": 0.5}


def reproduce(lab: Lab) -> str:
    torch = lab.torch
    from dsfix.lab.kernels import provide_fused_adam

    provide_fused_adam(lab)
    batches = [lab.models.regression_batch(rank=0, step=step) for step in range(_STEPS)]
    steps = [[batch] for batch in batches]
    config = {
        "train_micro_batch_size_per_gpu": len(batches[0][0]),
        "gradient_clipping": 0.0,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "adam_w_mode": False, **_ADAM}},
    }

    def plain(kind: str) -> Any:
        model = lab.models.MLP()
        return lab.reference.train(model, steps, model.loss, kind, **_ADAM).parameters

    def trained() -> Any:
        model = lab.models.MLP()
        # not lab.initialize, which makes a dict of its own
        engine = lab.deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())[0]
        for inputs, targets in batches:
            outputs = engine(inputs.to(lab.device))
            engine.backward(torch.nn.functional.mse_loss(outputs, targets.to(lab.device)))
            engine.step()
        return lab.parameters(engine)

    right, first, second = plain("Adam"), trained(), trained()
    difference = lab.reference.largest_difference(first, right)
    if difference.relative > 1e-4:
        raise AssertionError(f"the first engine does not train with the configured Adam: {difference}")
    return lab.reference.compare(
        second,
        right,
        {"those of AdamW": plain("AdamW")},
        after=f"after {_STEPS} steps of the second engine",
    )
