"""Curriculum learning and data efficiency: their settings."""

from __future__ import annotations

from ..signature import Signature

SIGNATURES = (
    Signature(
        id="curriculum_settings",
        title="curriculum learning or random-LTD: a setting is missing or not known",
        what="A curriculum needs curriculum_type (curriculum_metrics in data_efficiency), min_difficulty, "
        "max_difficulty, schedule_type (fixed_linear, fixed_root, fixed_discrete, custom) and schedule_config with "
        "the keys of that schedule.",
        remedy="The message names the key: total_curriculum_step and difficulty_step for fixed_linear, root_degree "
        "besides for fixed_root, difficulty and max_step (one shorter) for fixed_discrete.",
        pattern=r"Curriculum learning (?:requires the config|with fixed_\w+ schedule requires)"
        r"|Curriculum learning is enabled, \S+ must be specified|Unsupported (?:curriculum|random LTD) schedule type"
        r"|must be\s+equivalent to the len of random_ltd_layer_id"
        r"|Dynamic batching is enabled, so \S+ must be specified",
    ),
    Signature(
        id="data_analysis_incomplete",
        title="data efficiency: the analysis of the data does not fit the data",
        what="The difficulty of each sample is read from the files of the data analyzer. Most likely a worker of the "
        "map step has not finished, the data set was changed or has another length, or a metric returns another type "
        "than metric_dtypes says (integers are expected).",
        remedy="Run the map step of all workers, then reduce; delete the metrics' directory after a change of the "
        "data.",
        pattern=r"The number of samples in map result files are not correct"
        r"|Seqlens size does not match the input dataset"
        r"|metric_function result dtype|metric_function must return a tensor|metric_dtype \S+ not supported"
        r"|Currently floating point metric values are not supported",
    ),
)
