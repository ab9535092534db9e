"""Inference v2: FastGen, DeepSpeed-MII."""

from __future__ import annotations

from ..signature import Signature, pull

_ENGINE = r"inference/v2/checkpoint/huggingface_engine\.py"


SIGNATURES = (
    Signature(
        id="fastgen_remote_code",
        title="FastGen: a model with code of its own needs trust_remote_code, which is not passed on",
        what="build_hf_engine reads the model's config without arguments for transformers; since 0.15.0 only "
        "HuggingFaceCheckpointEngine itself takes them.",
        remedy="A model type that transformers knows without code of the model. In a script of your own, DeepSpeed "
        "0.15.0 or later: HuggingFaceCheckpointEngine(path, trust_remote_code=True) and the model's policy.",
        pattern=rf"{_ENGINE}[\s\S]*trust_remote_code=True",
        affects={"deepspeed": ">=0.12.0"},
        evidence=pull(6378),
    ),
    Signature(
        id="fastgen_generation_config",
        title="FastGen: a model without generation_config.json is not loaded",
        what="Through 0.12.6 the file is read, needed or not.",
        remedy='DeepSpeed 0.13.0 or later; or a file generation_config.json with {"max_length": 2048} in the '
        "model's directory.",
        pattern=rf"{_ENGINE}[\s\S]*generation_config\.json",
        affects={"deepspeed": "<0.13.0"},
        evidence=pull(4938),
    ),
    Signature(
        id="fastgen_q_ratio",
        title="FastGen: Unsupported q_ratio",
        what="The kernels exist for some ratios of query heads to key heads; 6 and 7 (Qwen 2) since 0.15.0.",
        remedy="6 and 7: DeepSpeed 0.15.0 or later. Others: another inference engine.",
        pattern=r"Unsupported q_ratio: \d+",
        affects={"deepspeed": ">=0.12.0"},
        evidence=pull(6028),
    ),
    Signature(
        id="fastgen_unembed_dtype",
        title="FastGen of a model with tied embeddings: 'UnembedParameter' object has no attribute 'dtype'",
        what="Through 0.17.1 a parameter that is not loaded by itself does not know its type.",
        remedy="DeepSpeed 0.17.2 or later.",
        pattern=r"'UnembedParameter' object has no attribute 'dtype'",
        affects={"deepspeed": "<0.17.2"},
        evidence=pull(7378),
    ),
    Signature(
        id="fastgen_opt_names",
        title="FastGen of OPT: Could not find a mapping for dependency",
        what="Through 0.12.3 the names of some of OPT's sizes are not known.",
        remedy="DeepSpeed 0.12.4 or later; OPT-350m is not supported.",
        pattern=r"Could not find a mapping for dependency \"(?:model\.)?decoder\.",
        affects={"deepspeed": "<0.12.4"},
        evidence=pull(4694),
    ),
)
