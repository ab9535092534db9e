"""DataAnalyzer, and batches of varying size."""

from __future__ import annotations

from ..signature import Signature, pull

_ANALYZER = r"data_sampling/data_analyzer\.py"

SIGNATURES = (
    Signature(
        id="data_analyzer_empty_file",
        title="DataAnalyzer.run_reduce: cannot mmap an empty file",
        what="A thread had no samples: there are more threads than samples, or, through 0.14.1, the samples are "
        "rounded up per thread so that none are left for the last one (6 samples, 4 threads). Otherwise the map failed "
        "before; its processes' errors are above.",
        remedy="Fewer threads (num_threads) or workers; DeepSpeed 0.14.2 or later splits evenly.",
        pattern=rf"{_ANALYZER}[\s\S]*cannot mmap an empty file",
        affects={"deepspeed": ">=0.12.0"},
        evidence=(*pull(5106), *pull(5292), "run: 0.13.1, 0.14.1, 0.14.2"),
    ),
    Signature(
        id="data_analyzer_dtype",
        title="DataAnalyzer: Cannot interpret 'torch.int64' as a data type",
        what="Through 0.13.2 metric_dtypes must be NumPy's.",
        remedy="metric_dtypes=[numpy.int64]; from 0.13.3 on the dtype that metric_functions return.",
        pattern=r"data_sampling/indexed_dataset\.py[\s\S]*Cannot interpret 'torch\.\w+' as a data type",
        affects={"deepspeed": "<0.13.3"},
        evidence=(*pull(5108), "run: 0.13.1, 0.13.2"),
    ),
    Signature(
        id="data_analyzer_index",
        title="DataAnalyzer: a batch has no field 'index'",
        what="Through 0.13.2 each batch must be a dict with the numbers of its samples, data['index'][row][0].",
        remedy="DeepSpeed 0.13.3 or later; or a collate_fn that adds 'index', a tensor of shape [batch, 1].",
        pattern=rf"{_ANALYZER}[\s\S]*data\['index'\]\[row\]\[0\][\s\S]*(?:KeyError|TypeError|IndexError)",
        affects={"deepspeed": "<0.13.3"},
        evidence=(*pull(5112), "run: 0.13.1, 0.13.2"),
    ),
    Signature(
        id="data_analyzer_specific_threads",
        title="DataAnalyzer with specific_threads: list index out of range",
        what="Through 0.19.7 specific_threads must begin 0, 1, 2 and so on: a process is looked up by its thread's "
        "number in the list of those that are started.",
        remedy="DeepSpeed 0.19.8 or later; or all threads at once, without specific_threads.",
        pattern=rf"{_ANALYZER}[\s\S]*p\[thread\]\.(?:start|join)\(\)[\s\S]*IndexError: list index out of range",
        affects={"deepspeed": "<0.19.8"},
        evidence=("run: 0.12.0, 0.19.7", "the source of 0.19.8"),
    ),
    Signature(
        id="batch_size_scaling_sqrt",
        title='lr_scaling_method "sqrt": sqrt() of a float',
        what="0.16.5 to 0.18.3 compute it by torch.sqrt, which takes tensors only.",
        remedy='DeepSpeed 0.18.4 or later; or "linear".',
        pattern=r"in scale_lr\n[\s\S]*sqrt\(\): argument 'input' \(position 1\) must be Tensor, not float",
        affects={"deepspeed": ">=0.16.5,<0.18.4"},
        evidence=(*pull(7735), "run: 0.17.4"),
    ),
)
