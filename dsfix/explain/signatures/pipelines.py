"""PipelineModule: what goes between its layers and stages."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="pipeline_inputs",
        title="pipeline parallelism: what a layer gets and returns",
        what="A PipelineModule calls its layers one after another: each gets what the one before has returned, a "
        "tensor or a tuple of tensors. Dictionaries, None and other objects cannot be sent to the next stage, and a "
        "layer has no access to earlier results (skip connections) but what is passed on. The data iterator yields "
        "(inputs, labels). TiedLayerSpec is for a weight that several layers use (embedding and head), whose "
        "gradients are added up over the stages.",
        remedy="Layers that take a tuple and return one, with masks and positions as tensors that each layer passes "
        "on; what is constant as an argument of the layer.",
        pattern=r"(?:ipeline [Pp]arallel|PipelineModule|PipelineEngine|ipeline parallelism)[^\n]{0,160}(?:dict input"
        r"|dict output|ict input|uple input|multiple inputs|uple trans|use tuple|skip connection)"
        r"|(?:multiple inputs|tuple transferring|[Dd]ict input|skip connections?)[^\n]{0,100}(?:ipeline parallel"
        r"|ipeline [Mm]odule|PipelineModule)|about \"?TiedLayerSpec|TiedLayerSpec`? (?:which|is|does)",
        role=Role.FAMILY,
        evidence=("https://github.com/deepspeedai/DeepSpeed/issues/3738",),
    ),
    Signature(
        id="pipeline_sends_tensors_only",
        title="pipeline parallelism: an output cannot be sent to the next stage",
        what="Between stages go tensors and tuples of tensors. A list, a dictionary, None or another object is "
        "refused.",
        remedy="Return a tuple of tensors from the layer, with masks and positions as tensors.",
        pattern=r"Could not (?:send|receive) (?:meta )?type |Could not send output of type"
        r"|Buffer for metadata is too small",
    ),
    Signature(
        id="pipeline_arguments",
        title="PipelineModule: an argument that it does not know",
        what="partition_method is uniform, parameters, type:REGEX or a list; checkpointable_layers a list of names of "
        "classes; a topology has positive sizes whose product is the number of ranks.",
        remedy="The message names the argument.",
        pattern=r"Partitioning method \S+ not implemented|param `checkpointable_layers` must be type of list"
        r"|rank \d+ not found in topology",
    ),
    Signature(
        id="pipeline_shape_of_first_batch",
        title="pipeline: evaluation with another batch size or sequence length than training",
        what="The stages exchange the shapes of the first batch only, and receive all later ones into these buffers.",
        remedy="engine.reset_activation_shape() before eval_batch and after it, or micro-batches of one size.",
        pattern=r"(?:eval_batch|PipelineModule)[^\n]{0,200}(?:dataloader'?s? batch_size|eval batch size)"
        r"|eval batch size in pipeline",
        role=Role.POSSIBLE,
        evidence=("deepspeed.runtime.pipe.engine.PipelineEngine.reset_activation_shape",),
    ),
)
