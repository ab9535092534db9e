"""Pipeline parallelism: PipelineModule, its layers, the engine's functions."""

from __future__ import annotations

from ..fact import Fact

_MODULE = "deepspeed.runtime.pipe.module:PipelineModule"
_ENGINE = "deepspeed.runtime.pipe.engine:PipelineEngine"
_FRAMES = "deepspeed/runtime/pipe/engine.py"

FACTS = (
    Fact(
        id="pipeline_gradients_and_module",
        names=("PipelineModule", "PipelineEngine", "deepspeed.pipe", "LayerSpec"),
        title="pipeline: a tensor that a stage gets has no gradient",
        what="Of what a stage gets, every floating-point tensor needs a gradient in its backward pass: one that is "
        "not used there, or passed on detached (a float mask, a frozen part), fails or hangs when the gradients are "
        "sent back. Integers are left out.",
        remedy="Masks as integers; use or return each float so that it is part of the graph; frozen layers in one "
        "stage with trainable ones.",
        beside=("gradients + fails", "gradients + none", "gradients + hang", "frozen"),
        patches=("pipeline_float_without_gradient",),
        evidence=(f"{_ENGINE}._exec_send_grads",),
    ),
    Fact(
        id="pipeline_and_recomputation",
        names=("PipelineModule", "PipelineEngine", "activation_checkpoint_interval", "LayerSpec"),
        title="activation checkpointing in a pipeline: the first group gets no gradient",
        what="With the reentrant default a recomputed group whose inputs require no gradient (the embedding, which "
        "gets token ids, or frozen layers before it) is cut out of the graph: backward fails, or its parameters are "
        "not trained. Only GPTModelPipe and GPT2ModelPipe leave out other layers than ParallelTransformerLayerPipe by "
        "themselves.",
        remedy="checkpointable_layers with the names of the blocks' classes; or pipeline.use_reentrant false, with "
        "activation_checkpoint_interval in that section of the config.",
        beside=("recomputation", "gradients + checkpoint"),
        evidence=(f"{_MODULE}._is_checkpointable",),
    ),
    Fact(
        id="pipeline_memory_of_stages",
        names=("PipelineModule", "PipelineEngine", "LayerSpec", "partition_method", "pipeline_parallelism"),
        title="pipeline parallelism: the stages need different memory, and not half of it",
        what="A stage holds its layers' weights, gradients and optimizer states, and the activations of as many "
        "micro-batches as there are stages from it on: most on the first one. Embeddings and logits lie on the ends, "
        "buffers and the CUDA context on each; all layers given as modules, not LayerSpec, are built on every rank's "
        "host first.",
        remedy="Smaller and more micro-batches, activation_checkpoint_interval, partition_method by 'type:' of the "
        "blocks, LayerSpec for the layers, ZeRO-1 for the optimizer's states.",
        beside=("memory", "unbalanced", "oom"),
        evidence=(f"{_ENGINE}", "deepspeed.runtime.pipe.schedule:TrainSchedule"),
    ),
    Fact(
        id="pipeline_module_needs",
        names=("PipelineModule", "LayerSpec", "PipeModelDataParallelTopology", "PipeDataParallelTopology"),
        title="PipelineModule: what the model has to be",
        what="A list of layers, each of which gets what the one before returns: a tensor or a tuple of tensors, no "
        "dict and no None. Distributed has to be initialized before it is made, num_stages must divide the number of "
        "processes, ZeRO-2 and 3 and an mpu are refused, and only one such model per job works. The labels go to "
        "loss_fn(outputs, labels) only.",
        remedy="Masks and positions as tensors in the tuple; LayerSpec(Class, arguments) so that a rank builds only "
        "its own layers; a model of transformers has to be rewritten as such a list.",
        beside=("fails", "how", "hang", "several models", "oom", "start", "zero-2", "zero-3", "differs", "loading"),
        evidence=(f"{_MODULE}.__init__", f"{_ENGINE}.__init__"),
    ),
    Fact(
        id="building_layers_of_stages",
        names=(
            *("deepspeed/runtime/pipe/module.py:_build", "deepspeed/runtime/pipe/module.py:build"),
            *("deepspeed/runtime/pipe/module.py:_count_layer_params", "deepspeed/runtime/pipe/module.py:__init__"),
        ),
        title="a layer of a PipelineModule is built",
        what="LayerSpec(Class, *args, **kwargs) calls Class(*args, **kwargs) here: an error in it is one of the "
        "layer's own arguments. With partition_method 'parameters' (the default) each rank builds every layer once to "
        "count its parameters. The rank's own layers are then moved to the GPU of LOCAL_RANK.",
        remedy="Build the class by hand with the same arguments. partition_method='uniform' or 'type:NAME' builds "
        "only the rank's own layers.",
        evidence=(f"{_MODULE}._build",),
    ),
    Fact(
        id="tied_layers",
        names=(
            *("TiedLayerSpec", "tied_weight_attr", "tied_comms", "_index_tied_modules", "_synchronize_tied_weights"),
            *("allreduce_tied_weight_gradients", f"{_FRAMES}:_exec_reduce_tied_grads"),
        ),
        title="TiedLayerSpec: what is shared",
        what="Layers with one key share a module: each stage that has one holds a copy, whose attribute "
        "tied_weight_attr ('weight' by default) is kept equal by adding up its gradients. Other parameters of that "
        "module are not, and a forward_fn gets (module, inputs). More than one key, or a weight without a gradient, "
        "can hang or fail in older releases.",
        remedy="tied_weight_attr with the names of all shared parameters (a list; 'linear.weight' since 0.16.6). No "
        "frozen tied weights.",
        patches=("pipeline_tied_keys_order",),
        evidence=(f"{_MODULE}._index_tied_modules", "https://github.com/deepspeedai/DeepSpeed/pull/7208"),
    ),
    Fact(
        id="pipeline_train_batch",
        names=("train_batch", "set_dataiterator", "set_dataloader", f"{_FRAMES}:_next_batch", "RepeatingLoader"),
        title="PipelineEngine.train_batch: what it reads, and when it hangs",
        what="One call takes gradient_accumulation_steps micro-batches, each (inputs, labels), from an iterator that "
        "the first and the last stage read, in the same order, and makes the optimizer's step; forward, backward and "
        "step are not called. Ranks of different stages must be given the same data; where an iterator ends on one "
        "stage the others wait.",
        remedy="An iterator, not a DataLoader (iter(RepeatingLoader(loader))), a DistributedSampler by the "
        "data-parallel rank and drop_last=True. It is called by all ranks equally often.",
        beside=(
            *("hang", "fails", "how", "pipeline", "slow", "differs", "wrong", "loss", "zero loss", "steps"),
            "accumulation",
        ),
        evidence=(f"{_ENGINE}.train_batch",),
    ),
    Fact(
        id="pipeline_load_micro_batch",
        names=(f"{_FRAMES}:_exec_load_micro_batch", "_exec_load_micro_batch", "set_batch_fn"),
        title="the pipeline engine reads a micro-batch: (inputs, labels)",
        what="batch[0] goes to the first stage and batch[1] to the last one; each is a tensor or a tuple or list of "
        "tensors, nested no deeper and without None. A dict, as transformers' collators make it, or a single tensor "
        "fails here; StopIteration means that the iterator gave fewer than gradient_accumulation_steps batches.",
        remedy="A collate function that returns (inputs, labels), or engine.set_batch_fn for it.",
        evidence=(f"{_ENGINE}._exec_load_micro_batch",),
    ),
    Fact(
        id="pipeline_sends_and_receives",
        names=(
            *(f"{_FRAMES}:_exec_send_activations", f"{_FRAMES}:_exec_recv_activations", f"{_FRAMES}:_send_tensor_meta"),
            *(f"{_FRAMES}:_recv_tensor_meta", "_exec_recv_activations", "_exec_send_activations", "dynamic_shape"),
            *("deepspeed/runtime/pipe/p2p.py:recv", "deepspeed/runtime/pipe/p2p.py:send", "reset_activation_shape"),
        ),
        title="the pipeline's stages exchange tensors",
        what="The shapes and types are sent with the first micro-batch only, so that a later one of another batch "
        "size or length hangs, or is read wrongly. Only tensors and tuples of tensors can be sent. A stage that ended "
        "by an error lets the others wait here.",
        remedy="Pad to one length and drop_last=True, or PipelineModule(dynamic_shape=True) (0.15 or later), or "
        "engine.reset_activation_shape() before a change. Look for the first error of all ranks.",
        evidence=(f"{_ENGINE}._exec_send_activations",),
    ),
    Fact(
        id="pipeline_gradients_sent",
        names=(
            *(f"{_FRAMES}:_exec_send_grads", f"{_FRAMES}:_exec_recv_grads", "_exec_send_grads", "_exec_recv_grads"),
            *(f"{_FRAMES}:_exec_backward_pass", "_exec_backward_pass"),
        ),
        title="the pipeline's backward pass: each floating-point tensor needs a gradient",
        what="Of what a stage gets, every floating-point tensor needs a gradient in its backward pass: one that is "
        "not used there, or passed on detached (a float mask, a frozen part), fails here. Integers are left out. A "
        "stage whose parameters are all frozen has no graph for its outputs.",
        remedy="Masks as integers; use or return each float so that it is part of the graph; frozen layers in one "
        "stage with trainable ones.",
        patches=("pipeline_float_without_gradient",),
        evidence=(f"{_ENGINE}._exec_send_grads",),
    ),
    Fact(
        id="pipeline_forward_pass",
        names=(f"{_FRAMES}:_exec_forward_pass", "_exec_forward_pass"),
        title="a stage's layers run on what the stage before has sent",
        what="Errors here are mostly those of a layer: a tuple where it expects a tensor or the other way round, one "
        "more or less value in it, an input that is not on the GPU, fp32 inputs for half weights, or, on the last "
        "stage, loss_fn(outputs, labels) with labels as a tuple. Activation checkpointing unpacks a tuple of one.",
        remedy="Run the layers by hand one after the other on one GPU, with the batch as the loader gives it.",
        evidence=(f"{_ENGINE}._exec_forward_pass",),
    ),
    Fact(
        id="pipeline_eval_batch",
        names=("eval_batch", "num_micro_batches", "return_logits", "bcast_loss", "reduce_output"),
        title="PipelineEngine.eval_batch: what it gives",
        what="It takes gradient_accumulation_steps micro-batches of training's size unless num_micro_batches is "
        "given, and all ranks have to call it. The mean loss is sent to all stages (as fp32); logits (return_logits) "
        "are those of the last micro-batch, on the last stage only. compute_loss=False leaves labels unused.",
        remedy="Micro-batches of the training's shapes, or engine.reset_activation_shape() before and after.",
        beside=(
            *("evaluation", "hang", "fails", "wrong", "differs", "how", "inference", "zero loss", "loss", "results"),
        ),
        patches=("pipeline_eval_micro_batches", "pipeline_half_loss_broadcast"),
        evidence=(f"{_ENGINE}.eval_batch",),
    ),
    Fact(
        id="pipeline_partitioning",
        names=("partition_method", "deepspeed/runtime/pipe/module.py:_partition_layers", "_partition_layers"),
        title="partition_method: how layers are shared out",
        what="'parameters' (default) balances the trainable parameters, so that frozen layers count nothing; "
        "'uniform' the number of layers; 'type:NAME' those layers whose class matches NAME. Memory is not balanced by "
        "it: the first stages keep more micro-batches' activations, the last one has the logits.",
        remedy="'type:TransformerLayer' for blocks; more micro-batches and activation_checkpoint_interval against "
        "uneven memory.",
        evidence=(f"{_MODULE}._partition_layers",),
    ),
    Fact(
        id="pipeline_activation_checkpoints",
        names=("activation_checkpoint_interval", "checkpointable_layers", "activation_checkpoint_func"),
        title="PipelineModule(activation_checkpoint_interval=)",
        what="Each group of that many layers is recomputed in the backward pass, 0 none. Groups without parameters "
        "and, where checkpointable_layers is given, with other classes are not. With the reentrant default an input "
        "that requires no gradient (token ids) gets none through it; the layers see a tuple as several arguments.",
        remedy="1 for transformer blocks. pipeline.use_reentrant false in the config, with the interval there, for "
        "frozen embeddings or adapters.",
        evidence=(f"{_MODULE}.forward",),
    ),
    Fact(
        id="pipeline_layer_files",
        names=(
            *("load_state_dir", "ckpt_layer_path", "deepspeed/runtime/pipe/module.py:load_state_dir"),
            "ckpt_layer_path_list",
        ),
        title="checkpoints of a PipelineModule: one file per layer",
        what="Weights are in layer_NN-model_states.pt by the layer's position in the list, so that they load with "
        "another number of stages as long as the list is the same; functions without state have no file. The "
        "optimizer's states are those of the stage and rank.",
        remedy="Another number of stages or ranks with the optimizer: a universal checkpoint. A layer more or less "
        "shifts all names.",
        evidence=(f"{_MODULE}.load_state_dir",),
    ),
    Fact(
        id="pipeline_engine_calls",
        names=("PipelineEngine", "PipelineError", f"{_FRAMES}:forward", f"{_FRAMES}:_aggregate_total_loss"),
        title="PipelineEngine: what differs from the other engine",
        what="Only train_batch and eval_batch may be called. train_batch_size is micro-batch times "
        "gradient_accumulation_steps times data-parallel ranks, not all ranks. With fewer micro-batches than stages "
        "most GPUs idle. With bf16 gradients are kept in fp32; only ZeRO-0 and 1 work.",
        remedy="gradient_accumulation_steps of four times the stages or more; transformers' Trainer and accelerate do "
        "not run it.",
        beside=("fails", "slow", "unused", "how", "differs", "loss", "memory", "wrong", "zero loss"),
        patches=("pipeline_accumulation_scaled_per_stage", "pipeline_bf16_accumulation_no_update"),
        evidence=(f"{_ENGINE}",),
    ),
)
