"""Sequence parallelism: Ulysses, ALST, and the tiled computations."""

from __future__ import annotations

from ..fact import Fact

_SP = "deepspeed.runtime.sequence_parallel.ulysses_sp"
_FRAMES = "deepspeed/runtime/sequence_parallel/ulysses_sp.py"

FACTS = (
    Fact(
        id="ulysses_for_transformers",
        names=(
            *("UlyssesSPAttentionHF", "register_with_transformers", f"{_FRAMES}:register_with_transformers"),
            *(f"{_FRAMES}:uattn_wrapper", "core_attn_implementation", "sp_attn_implementation"),
        ),
        title="UlyssesSPAttentionHF: what has to hold for a transformers model",
        what="register_with_transformers replaces every attention that transformers looks up by name, for all models "
        "of the process; its mpu goes to deepspeed.initialize. It needs transformers 4.51.3 or later, "
        "flash_attention_2, 3 or sdpa (not eager), heads divisible by the degree, key and value heads divisible by it "
        "or dividing it. The mask is dropped: position_ids tell where samples begin.",
        remedy="Batches from UlyssesSPDataLoaderAdapter; pass the model's name or object whose config has the heads; "
        "no padding mask, packed samples with position_ids instead.",
        patches=("ulysses_sequence_first_shape", "ulysses_attention_permuted"),
        evidence=(f"{_SP}:UlyssesSPAttentionHF",),
    ),
    Fact(
        id="ulysses_attention_forward",
        names=(f"{_FRAMES}:forward", f"{_FRAMES}:_combine_local_sequences", f"{_FRAMES}:_partition_global_sequence"),
        title="Ulysses attention: the shapes that it was registered with",
        what="Each rank must bring its part of the same samples, of one length on all ranks of the group, and the "
        "batch size given as micro_batch_size. Another batch size (a last batch, evaluation, generation with a cache) "
        "or, with seq_length_is_variable=False, another length fails its check; different lengths among the ranks "
        "hang.",
        remedy="micro_batch_size 1 with packed samples, drop_last=True, padding to a multiple of the degree; "
        "disable_in_eval=True (newer releases) where evaluation is not divided.",
        evidence=(f"{_SP}:UlyssesSPAttentionHF.forward",),
    ),
    Fact(
        id="ulysses_loader",
        names=("UlyssesSPDataLoaderAdapter", f"{_FRAMES}:refill", f"{_FRAMES}:__next__"),
        title="UlyssesSPDataLoaderAdapter: how it divides the batches",
        what="It wraps a loader that gives each rank a batch of its own; the ranks of a group then work on each of "
        "these batches together, each on its part of the sequence. Every batch needs input_ids, position_ids and "
        "labels (which become shift_labels), all tensors of one shape (batch, length), and a length divisible by the "
        "degree. The loss over the ranks has to be weighted by their number of labels.",
        remedy="A sampler over all ranks; loss from shift_labels, averaged by the counts of valid labels with "
        "torch.distributed.nn.functional.all_gather.",
        patches=("ulysses_second_epoch_empty",),
        evidence=(f"{_SP}:UlyssesSPDataLoaderAdapter.refill",),
    ),
    Fact(
        id="sequence_parallel_degree",
        names=("sequence_parallel_size", "ds_sequence_parallel_size", "sp_size", "sequence_parallel_world_size"),
        title="the degree of sequence parallelism",
        what="It divides the sequence, not the batch: ranks of a group share samples, and the number of data-parallel "
        "groups is the world size by the degree, which must divide the attention's heads. In the config alone it only "
        "changes how train_batch_size is counted; with data_parallel_size beside it groups are made. The model's "
        "attention has to be changed in any case.",
        remedy="Heads that it divides; sp_size in a framework's own settings also needs an attention that knows it "
        "(flash_attention_2 or sdpa with position_ids).",
        beside=("fails", "how", "hang", "loss", "differs", "oom", "memory", "slow", "wrong", "nan", "gradients"),
        patches=("ulysses_gradients_too_small",),
        evidence=("deepspeed.runtime.config:DeepSpeedConfig.__init__", "deepspeed:initialize"),
    ),
    Fact(
        id="distributed_attention",
        names=(
            *("DistributedAttention", "_SeqAllToAll", "deepspeed/sequence/layer.py:forward", "single_all_to_all"),
            *("deepspeed/sequence/layer.py:single_all_to_all", "scatter_idx", "gather_idx", "sequence_process_group"),
        ),
        title="DistributedAttention: layouts, and what it does not do",
        what="It exchanges sequence for heads around an attention: scatter_idx is the dimension of the heads, "
        "gather_idx that of the sequence, batch_dim_idx that of the batch (an argument of forward in 0.14.5 and "
        "later; before, batches above 1 are mixed up). The whole sequence must be divisible by the ranks, and have "
        "one length on all of them: otherwise the values are wrong without an error.",
        remedy="(sequence, batch, heads, size): 2 and 0; (batch, sequence, heads, size): 2 and 1. Pad to a multiple; "
        "masks and position embeddings are those of the whole sequence.",
        patches=("ulysses_attention_permuted",),
        evidence=("deepspeed.sequence.layer:DistributedAttention",),
    ),
    Fact(
        id="tiled_computations",
        names=(
            *("SequenceTiledCompute", "sequence_tiled_compute", "TiledMLP", "TiledFusedLogitsLoss", "TiledLoss"),
            *(f"{_FRAMES}:sequence_tiled_compute", f"{_FRAMES}:backward", "tiled_mlp_compute"),
        ),
        title="TiledMLP, TiledFusedLogitsLoss: computing a long sequence in pieces",
        what="The function runs piece by piece and again in the backward pass: less memory for long sequences, slower "
        "for short ones. compute_params has to list the parameters that it uses, whose gradients are otherwise "
        "reduced for each piece; it must act on each position alone, without dropout or a state.",
        remedy="Shards so that a piece has about the hidden size of positions; compare the loss with one shard.",
        patches=(
            "tiled_mlp_batch",
            "tiled_loss_unweighted",
            "tiled_logits_evaluation",
            "zero12_tiled_gradients_unreduced",
        ),
        evidence=(f"{_SP}:SequenceTiledCompute",),
    ),
    Fact(
        id="fpdt_attention",
        names=("FPDT_Attention", "FPDTAttention", "fpdt_layer", "FPDT_FFN", "FPDT_LogitsLoss"),
        title="FPDT: attention in chunks with offload, for Megatron-DeepSpeed",
        what="It is a layer for Megatron-DeepSpeed's GPT with flash-attn 2.6 or earlier, sequence parallelism and its "
        "own loss; the sequence is read in an order of its own (FPDT_InputConstruct). No framework of transformers "
        "uses it.",
        remedy="For transformers' models: Ulysses with tiled MLP and loss (ALST), and offload of checkpointed "
        "activations.",
        evidence=("deepspeed.sequence.fpdt_layer",),
    ),
    Fact(
        id="sequence_parallel_groups",
        names=(
            *("initialize_sequence_parallel", "parallel_state_sp", "get_sequence_parallel_group"),
            *("get_sequence_data_parallel_group", "_get_sequence_parallel_world_size"),
            "deepspeed/runtime/sequence_parallel/parallel_state_sp.py:initialize_sequence_parallel",
        ),
        title="the groups of sequence parallelism",
        what="They are made once per process, of neighbouring ranks: the world size has to be divisible by the "
        "degree, and a second degree in one process is refused. Gradients are added over the ranks of a group, which "
        "have parts of one sample, and averaged over the groups.",
        remedy="Give the mpu of register_with_transformers to deepspeed.initialize; a launcher with as many processes "
        "as GPUs.",
        patches=("ulysses_gradients_too_small",),
        evidence=("deepspeed.runtime.sequence_parallel.parallel_state_sp:initialize_sequence_parallel",),
    ),
    Fact(
        id="automatic_sequence_parallelism",
        names=("AutoSP", "auto_sp", "prepare_auto_sp_inputs"),
        title="AutoSP: sequence parallelism by the compiler",
        what="It is a pass of DeepSpeed's compile (0.18.9 or later), which divides the sequence in the compiled "
        "graph. It needs torch 2.9 or later, transformers 4.50.3 or earlier, sequence_parallel_size and "
        "data_parallel_size in the config, scaled_dot_product_attention in the model and a graph without breaks.",
        remedy="UlyssesSPAttentionHF for transformers' models, which needs no compiler.",
        evidence=("deepspeed.compile",),
    ),
)
