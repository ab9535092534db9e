"""torch.compile: engine.compile(), and the section "compile" of 0.13.2 to 0.14.3."""

from __future__ import annotations

from ..signature import Signature, pull

SIGNATURES = (
    Signature(
        id="compiled_names_wrapped",
        title='parameters are named "wrapped.…": a checkpoint and the model do not fit',
        what='In 0.13.2 to 0.14.2 "compile": {"enabled": true} puts the model into a wrapper, so that all names in '
        'checkpoints begin with "wrapped.".',
        remedy="DeepSpeed 0.14.3 or later; load such a checkpoint after removing the prefix from its keys, or with "
        "the release that wrote it.",
        pattern=r"(?:Missing|Unexpected) key\(s\) in state_dict: \"wrapped\.",
        evidence=pull(5455),
    ),
    Signature(
        id="compiled_iter_params",
        title="torch.compile + ZeRO-3 with torch 2.3 or later: dynamo fails in iter_params",
        what="dynamo traces a function of ZeRO-3's hooks that it cannot compile.",
        remedy="DeepSpeed 0.14.3 or later, or train without torch.compile.",
        pattern=r"torch\._dynamo\.exc[\s\S]*partitioned_param_coordinator\.py\"?, line \d+, in iter_params",
        affects={"deepspeed": ">=0.13.2,<0.14.3"},
        evidence=pull(5463),
    ),
    Signature(
        id="compile_backend_refused",
        title="compile.backend 'eager', 'aot_eager' and others: ValueError: Empty module name",
        what="0.13.2 and 0.13.3 know only the backends that torch lists by default, and take others for modules.",
        remedy='"backend": "inductor", or DeepSpeed 0.13.4 or later.',
        pattern=r"in get_backend_fn[\s\S]*Empty module name",
        affects={"deepspeed": ">=0.13.2,<0.13.4"},
        evidence=pull(5191),
    ),
    Signature(
        id="compile_backend_twice",
        title="engine.compile(): multiple values for keyword argument 'backend'",
        what="The backend is an argument of engine.compile and a key of its compile_kwargs.",
        remedy="Leave it out of compile_kwargs; DeepSpeed 0.15.2 or later takes the argument.",
        pattern=r"self\.module\.compile\(backend=backend, \*\*compile_kwargs\)[\s\S]*multiple values for keyword",
        affects={"deepspeed": ">=0.14.4,<0.15.2"},
        evidence=pull(6502),
    ),
    Signature(
        id="pipeline_of_another_model",
        title="model must base PipelineModule",
        what='The pipeline engine does not accept the model. In 0.13.2 to 0.13.4 "compile": {"enabled": true} wraps '
        "it, and the wrapper is no PipelineModule.",
        remedy='"compile": {"enabled": false}, or DeepSpeed 0.13.5 or later.',
        pattern=r"model must base PipelineModule",
        affects={"deepspeed": ">=0.13.2,<0.13.5"},
        evidence=pull(5197),
    ),
)
