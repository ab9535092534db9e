"""DeepSpeed Compression: compression_training, ZeroQuant, XTC."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="compression_only_simulates",
        title="compression makes the model neither smaller nor faster",
        what="compression_training simulates: quantized weights and activations are rounded but stay fp32 or fp16, and "
        "pruned ones are set to 0. redundancy_clean removes pruned rows, heads and layers from the model; quantized or "
        "sparse weights keep their size, and the int8 kernels of the papers (ZeroQuant, XTC) are not released.",
        remedy="For a smaller or faster model: layer reduction, or row, head or channel pruning and redundancy_clean; "
        "quantized inference with another library, from the trained weights.",
        pattern=r"(?:ZeroQuant|Zeroquant|zeroquant|zero_quant|XTC in DeepSpeed|DeepSpeed Compression"
        r"|DeepSpeed compression"
        r"|deepspeed compression|init_compression|model_compression|compression_training)[\s\S]{0,300}?(?:not compress"
        r"|not smaller|any smaller|same (?:as|with|size|file size)|slower|no gain|not improv"
        r"|any performance improvement"
        r"|no speedup|any throughput|not work|n't work|not reduce)",
        role=Role.POSSIBLE,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/2239",),
    ),
    Signature(
        id="compression_config_incomplete",
        title="compression_training: a setting is missing or not supported",
        what="Each method needs shared_parameters and different_groups with their keys (start_bits and target_bits for "
        "weights, bits for activations, dense_ratio for pruning), and takes some types only: symmetric or asymmetric, "
        "4 or 8 bits for activations, 4 and more bits for weights in the forward pass.",
        remedy="The message names the key and the supported values.",
        pattern=r"(?:Weigh|Activation) Quantization is enabled, |(?:Sparse|Row|Head|Channel) Pruning is enabled"
        r"|must be specified for (?:weight|activation) quantization group"
        r"|must be specified for (?:sparse|row|head|channel) pruning"
        r"|Invalid (?:weight quantize|activation quantize|sparse pruning|row pruning|head pruning|channel pruning) "
        r"(?:type|rounding|range calibration|method)|bits (?:activation|weight) quantization are supported"
        r"|Only symmetric quantization is supported for (?:ternary|binary)|is already added to compression, please"
        r"|Teacher model is required for layer reduction",
    ),
)
