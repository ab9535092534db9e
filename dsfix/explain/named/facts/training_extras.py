"""Parts of DeepSpeed beside ZeRO: curriculum, data efficiency, compression, elasticity."""

from __future__ import annotations

from ..fact import Fact

_PIPELINE = "deepspeed.runtime.data_pipeline"

FACTS = (
    Fact(
        id="curriculum_by_length",
        names=(
            *("curriculum_learning", "curriculum_seqlen", "curriculum_type", "min_difficulty", "max_difficulty"),
            *("difficulty_step", "total_curriculum_step", "CurriculumScheduler", "curriculum_scheduler"),
            "curriculum_metrics",
        ),
        title="curriculum learning: who shortens the sequences",
        what="The section curriculum_learning (refused since 0.19.8) only computes a difficulty; with type seqlen the "
        "model gets it as curriculum_seqlen of forward and has to cut its inputs itself, which transformers' models do "
        "not. The newer one (data_efficiency.data_sampling) chooses samples, and only with training_data given to "
        "initialize and an analysis of the data. Through 0.19.6 difficulties can fall below min_difficulty.",
        remedy="Take curriculum_seqlen in the model's forward; min_difficulty a multiple of difficulty_step.",
        patches=("curriculum_below_minimum",),
        evidence=("deepspeed.runtime.engine:DeepSpeedEngine.forward", f"{_PIPELINE}.curriculum_scheduler"),
    ),
    Fact(
        id="data_efficiency_sampling",
        names=(
            *("data_efficiency", "data_sampling", "DataAnalyzer", "DeepSpeedDataSampler", "DistributedDataAnalyzer"),
            *("index_to_sample_path", "index_to_metric_path", "metric_dtypes", "metric_functions", "run_map_reduce"),
            "deepspeed/runtime/data_pipeline/data_sampling/data_sampler.py:__next__",
        ),
        title="data efficiency: analysis first, then training with its files",
        what="DataAnalyzer runs over the data set in two passes (run_map with all workers, then run_reduce once): "
        "each metric function returns a tensor of its metric_dtype, a value per sample, and save_path must be shared. "
        "The files named by the config must be of the same data set, in the same order.",
        remedy="An analysis with one worker first; training_data in deepspeed.initialize, as a loader of one's own is "
        "not sampled.",
        patches=("data_sampler_random_state",),
        evidence=(f"{_PIPELINE}.data_sampling.data_analyzer:DataAnalyzer",),
    ),
    Fact(
        id="random_layer_token_drop",
        names=(
            *("random_ltd", "RandomLayerTokenDrop", "convert_to_random_ltd", "random_ltd_layer_id", "data_routing"),
            *("random_ltd_initialize", "random_ltd_layer_num"),
        ),
        title="random-LTD: layers have to be wrapped",
        what="data_routing.random_ltd in the config alone drops no token: convert_to_random_ltd(model, LayerClass) "
        "replaces the layers, after initialize, and random_ltd_layer_num must be the number of layers that "
        "random_ltd_layer_id names. The layers take hidden states and a mask of BERT's or GPT's form, all else as "
        "keyword arguments, and its kernels are compiled.",
        remedy="deepspeed.initialize before convert_to_random_ltd; remove_random_ltd_state_dict for the weights' names "
        "without the wrapper.",
        evidence=(f"{_PIPELINE}.data_routing", "https://www.deepspeed.ai/tutorials/data-efficiency/"),
    ),
    Fact(
        id="compression_of_models",
        names=(
            *("init_compression", "redundancy_clean", "compression_training", "LinearLayer_Compress", "ZeroQuant"),
            *("weight_quantization", "activation_quantization", "layer_reduction", "student_initialization", "XTC"),
            *("deepspeed/compression/compress.py:init_compression", "row_pruning", "head_pruning", "sparse_pruning"),
            "quantize_training",
        ),
        title="compression_training: it imitates, and is removed in 0.19.7",
        what="The section has an effect only with init_compression(model, config) before initialize; it replaces "
        "linear and convolution layers of the named modules by ones that imitate quantization or pruning. Weights "
        "stay in their type, so that nothing gets smaller or faster; redundancy_clean fixes the result and removes "
        "only pruned rows, heads and channels. From 0.19.7 on it and quantize_training are refused.",
        remedy="DeepSpeed 0.19.6 or older, with 'modules' as patterns of the model's own names, and a teacher_model "
        "for layer_reduction. Real int8 speed needs another engine after it.",
        evidence=("deepspeed.compression.compress", "https://www.deepspeed.ai/tutorials/model-compression/"),
    ),
    Fact(
        id="progressive_layer_drop",
        names=("progressive_layer_drop", "pld_theta", "pld_state", "ProgressiveLayerDrop"),
        title="progressive_layer_drop: the model has to use theta; removed in 0.19.8",
        what="DeepSpeed computes a probability theta and passes it to the model's forward as progressive_layer_drop "
        "and pld_theta; a model that does not take these arguments fails, and one that ignores them drops nothing. "
        "0.19.8 refuses the section.",
        remedy="For models written for it (BERT of DeepSpeedExamples); leave the section out elsewhere.",
        evidence=("deepspeed.runtime.engine:DeepSpeedEngine.forward", "deepspeed.runtime.config"),
    ),
    Fact(
        id="elastic_sizes",
        names=(
            *("max_train_batch_size", "micro_batch_sizes", "DSElasticAgent", "ELASTIC_RUN_ID", "elastic_training"),
            *("min_elastic_nodes", "max_elastic_nodes", "compute_elastic_config", "ignore_non_elastic_batch_info"),
            "DEEPSPEED_ELASTICITY_CONFIG",
        ),
        title="elasticity: sizes that suit several numbers of GPUs; removed in 0.19.8",
        what="The section computes one global batch size up to max_train_batch_size that suits many numbers of GPUs, "
        "and refuses other ones, and batch sizes of the config beside it (unless ignore_non_elastic_batch_info). It "
        "does not restart a job: deepspeed --elastic_training does so with torch's agent and --master_addr, and each "
        "restart loads a checkpoint that the script saved. 0.19.8 refuses the section.",
        remedy="ds_elastic -c CONFIG -w N shows the sizes; no train_batch_size beside the section. A universal "
        "checkpoint (load_universal) for another number of ranks.",
        patches=("torch_elastic_get_socket_with_port", "torch_elastic_log"),
        evidence=("deepspeed.elasticity.elasticity:compute_elastic_config", "deepspeed.launcher.launch:main"),
    ),
)
