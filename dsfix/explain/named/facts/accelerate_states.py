"""accelerate under DeepSpeed: unwrapping a model, and saving and loading its state."""

from __future__ import annotations

from ..fact import Fact

FACTS = (
    Fact(
        id="unwrapping_partitioned",
        names=(
            "unwrap_model",
            "accelerator.unwrap_model",
            "extract_model_from_parallel",
        ),
        beside=(
            "saving",
            "empty",
            "zero-3",
            "loading",
            "inference",
            "generation",
        ),
        title="accelerate: unwrap_model does not gather weights",
        what="It returns the module inside of the engine. Under ZeRO-3 its parameters are still partitioned "
        "and empty: save_pretrained, state_dict or generate of it alone have no weights.",
        remedy="state = accelerator.get_state_dict(model) on all ranks, then unwrapped.save_pretrained(…, "
        "is_main_process=accelerator.is_main_process, state_dict=state); GatheredParameters around other "
        "uses.",
        evidence=("accelerate.Accelerator.unwrap_model",),
    ),
    Fact(
        id="state_dict_of_engine",
        names=("get_state_dict", "accelerator.get_state_dict", "accelerate/accelerator.py:get_state_dict"),
        beside=(
            "saving",
            "hang",
            "empty",
            "zero-3",
            "oom",
            "host",
            "incomplete",
        ),
        title="accelerator.get_state_dict is a collective under ZeRO-3",
        what="All ranks have to call it: under `if accelerator.is_main_process` the job hangs. It needs "
        "stage3_gather_16bit_weights_on_model_save (zero3_save_16bit_model), returns the whole model in the host's "
        "memory on rank 0 and None on the others; for ZeRO-0 to 2 a copy on each rank.",
        remedy="Call it on all ranks, and save its result on rank 0; enough host memory there, else "
        "model.save_checkpoint and zero_to_fp32.py.",
        evidence=("accelerate.Accelerator.get_state_dict",),
    ),
    Fact(
        id="save_state_of_engine",
        names=(
            "save_state",
            "accelerator.save_state",
            "accelerator.save_model",
            "accelerate/accelerator.py:save_state",
        ),
        beside=(
            "saving",
            "hang",
            "checkpoint",
            "resuming",
        ),
        title="accelerator.save_state with DeepSpeed",
        what="The engine writes its partitions, from all ranks, to pytorch_model/ in the directory: called by "
        "the main process alone it hangs. These are no files for from_pretrained; save hooks get an empty "
        "list of weights with DeepSpeed.",
        remedy="save_state on all ranks; for weights zero_to_fp32.py in that directory, or get_state_dict and "
        "save_pretrained; hooks take the models, and gather themselves under ZeRO-3.",
        evidence=("accelerate.Accelerator.save_state",),
    ),
    Fact(
        id="load_state_of_engine",
        names=(
            "load_state",
            "accelerator.load_state",
            "accelerate/accelerator.py:load_state",
        ),
        beside=(
            "loading",
            "resuming",
            "checkpoint",
            "fails",
        ),
        title="accelerator.load_state with DeepSpeed",
        what="It loads the engine's checkpoint (pytorch_model/ in the directory): after prepare, with the same "
        "number of ranks, stage and trainable parameters as were saved, on all ranks. A state that was saved "
        "without DeepSpeed, or weights alone, cannot be loaded, and neither can one whose writing was cut off.",
        remedy="prepare first, then load_state(the directory of save_state); load_module_strict=False for "
        "adapters; weights only by from_pretrained before prepare.",
        evidence=("accelerate.Accelerator.load_state",),
    ),
)
