"""DeepCompile ("compile": {"deepcompile": true})."""

from __future__ import annotations

from ..signature import Signature, pull

_OFF = 'Or "deepcompile": false.'


SIGNATURES = (
    Signature(
        id="deepcompile_backward_frame",
        title="DeepCompile: KeyError in the backward pass, at frames_needing_bwd",
        what="The backward graph of a frame is compiled a second time, and the frame has been taken off the list of "
        "those that wait for it.",
        remedy=f"DeepSpeed 0.19.0 or later. {_OFF}",
        pattern=r"frames_needing_bwd\.remove\([\s\S]*KeyError",
        affects={"deepspeed": ">=0.17.1,<0.19.0"},
        evidence=pull(7980),
    ),
    Signature(
        id="deepcompile_bw_compiler",
        title="DeepCompile with torch 2.11 or later: KeyError: 'bw_compiler'",
        what="These releases take from torch's compiler an argument that torch 2.11 does not pass.",
        remedy=f"DeepSpeed 0.19.1 or later, or torch 2.10. {_OFF}",
        pattern=r"KeyError: '?bw_compiler",
        affects={"deepspeed": ">=0.16.6,<0.19.1", "torch": ">=2.11"},
        evidence=pull(8024),
    ),
    Signature(
        id="deepcompile_frozen_parameter",
        title="DeepCompile + ZeRO-3 with frozen parameters (LoRA): KeyError in init_z3",
        what="engine.compile() looks for a gradient partition of every parameter; frozen ones have none. The error "
        "names the parameter's ds_id.",
        remedy=f"DeepSpeed 0.19.6 or later. {_OFF}",
        pattern=r"deepspeed/compile/init_z3\.py[\s\S]*param_id_to_grad_partition\[p\.ds_id\][\s\S]*KeyError"
        r"|DeepCompile\]? [^\n]{0,40}KeyError[^\n]{0,40}frozen param",
        affects={"deepspeed": ">=0.16.6,<0.19.6"},
        evidence=pull(8214),
    ),
    Signature(
        id="deepcompile_guards",
        title="DeepCompile + ZeRO-3: guards fail, expected a size, actual 0",
        what="torch 2.9 and 2.10 check a frame right after they have compiled it, when ZeRO-3 has released its "
        "parameters again.",
        remedy=f"DeepSpeed 0.19.0 or later, or torch 2.8 or earlier. {_OFF}",
        pattern=r"Guard (?:check )?failed[\s\S]*size mismatch at index \d+\. expected \d+, actual 0",
        affects={"deepspeed": "<0.19.0"},
        evidence=pull(7951),
    ),
    Signature(
        id="deepcompile_fallback_kernel",
        title="DeepCompile with torch 2.8 or later: generate_fallback_kernel() takes another number of arguments",
        what="A function of torch's inductor that DeepCompile calls has lost an argument in torch 2.8.",
        remedy=f"torch 2.7, or DeepSpeed 0.18.4 or later (0.17.5 to 0.18.3 fail with torch 2.8 further on). {_OFF}",
        pattern=r"deepspeed/compile/inductor\.py[\s\S]*generate_fallback_kernel\(\) takes",
        affects={"deepspeed": ">=0.16.6,<0.17.5", "torch": ">=2.8"},
        evidence=pull(7496),
    ),
    Signature(
        id="deepcompile_partitioner_argument",
        title="DeepCompile with torch 2.8 or later: unexpected argument static_lifetime_input_indices",
        what="DeepCompile's partitioner does not take an argument that torch passes since 2.8.",
        remedy=f"DeepSpeed 0.18.4 or later, or torch 2.7. {_OFF}",
        pattern=r"unexpected keyword argument 'static_lifetime_input_indices'",
        affects={"deepspeed": ">=0.16.6,<0.18.4", "torch": ">=2.8"},
        evidence=pull(7755),
    ),
    Signature(
        id="deepcompile_dummy_inputs",
        title="DeepCompile: a dummy input is out of bounds for its storage",
        what="Dummy inputs are made from their shape, and then given strides that may need more memory.",
        remedy=f"DeepSpeed 0.17.6 or later. {_OFF}",
        pattern=r"in set_example_values_to_symints[\s\S]*out of bounds for storage",
        affects={"deepspeed": ">=0.17.1,<0.17.6"},
        evidence=pull(7564),
    ),
    Signature(
        id="deepcompile_profile_incomplete",
        title="DeepCompile: KeyError: 'device_time'",
        what="Profiling the graph stopped half way (most likely for lack of memory), and a pass reads the times of "
        "nodes that were not run.",
        remedy=f"DeepSpeed 0.19.3 or later; smaller micro-batches. {_OFF}",
        pattern=r"deepspeed/compile/[\s\S]*KeyError: '?device_time",
        affects={"deepspeed": ">=0.16.6,<0.19.3"},
        evidence=pull(8094),
    ),
    Signature(
        id="deepcompile_return_val",
        title="DeepCompile's profiler: UnboundLocalError, return_val: another error is behind it",
        what="The graph could not be run for profiling; this error takes the place of the real one, which is printed "
        "above it.",
        remedy="See the message above it; DeepSpeed 0.17.2 or later does not hide it.",
        pattern=r"profilers/graph_profile\.py[\s\S]*local variable 'return_val'",
        affects={"deepspeed": ">=0.16.6,<0.17.2"},
        evidence=pull(7395),
    ),
    Signature(
        id="deepcompile_staticmethod",
        title="DeepCompile on Python 3.9: 'staticmethod' object is not callable",
        what="DeepCompile calls a method of torch's CompiledFunction as it is written in the class; before Python "
        "3.10 static methods cannot be called like that.",
        remedy=f"Python 3.10 or later, or DeepSpeed 0.19.6 or later. {_OFF}",
        pattern=r"deepspeed/compile/patch_compiled_func\.py[\s\S]*'staticmethod' object is not callable",
        affects={"deepspeed": ">=0.16.6,<0.19.6"},
        evidence=pull(8240),
    ),
    Signature(
        id="deepcompile_unused_wait",
        title="DeepCompile: KeyError for an all-gather whose result nothing uses",
        what="A pass looks for the last use of each node, and one has none.",
        remedy=f"DeepSpeed 0.19.6 or later. {_OFF}",
        pattern=r"user = node_to_last_use\[user\][\s\S]*KeyError",
        affects={"deepspeed": ">=0.16.6,<0.19.6"},
        evidence=pull(8254),
    ),
    Signature(
        id="deepcompile_without_optimizer",
        title="DeepCompile + ZeRO-3 without an optimizer: no attribute parameter_offload",
        what="DeepCompile needs an optimizer; an engine for evaluation has none. 0.16.6 fails instead of saying so.",
        remedy="Give deepspeed.initialize an optimizer, or leave engine.compile() out.",
        pattern=r"'DeepSpeedZeRoOffload' object has no attribute 'parameter_offload'",
        affects={"deepspeed": "==0.16.6"},
        evidence=pull(7225),
    ),
    Signature(
        id="deepcompile_offload_states",
        title="DeepCompile + ZeRO-3: engine.offload_states(): 'NoneType' object has no attribute 'to'",
        what="DeepCompile removes the bucket for gradients, and offload_states copies it.",
        remedy="DeepSpeed 0.16.7 or later; or leave OffloadStateTypeEnum.contiguous_grad_buffer out of `include`.",
        pattern=r"ipg_bucket_flat_buffer\.to\([\s\S]*'NoneType' object has no attribute 'to'",
        affects={"deepspeed": "==0.16.6"},
        evidence=pull(7227),
    ),
)
