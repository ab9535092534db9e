"""Edits one real DeepSpeed function of each kind, calls it, reverts, and writes what was seen to a JSON file."""

import ast
import importlib
import inspect
import json
import os
import pickle
import sys
import traceback
import types

import dsfix  # noqa: F401 isort: skip
import deepspeed  # noqa: F401
import torch

from dsfix.engine import anchors, attributes, engine, rewrite, source, verdict
from dsfix.engine.cache import Cache
from dsfix.module_files import module_file
from dsfix.outcome import Refused
from dsfix.patch import Edit, Patch, Severity

SEEN = []
sys.modules["probe"] = types.ModuleType("probe")
sys.modules["probe"].SEEN = SEEN
MARK = "__import__('sys').modules['probe'].SEEN.append('seen')"
STAGE3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"


def get(target):
    module, _, qualname = target.partition(":")
    found = sys.modules[module]
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def bare(target, **attributes):
    """An instance without its __init__ having been run."""
    made = object.__new__(get(target))
    vars(made).update(attributes)
    return made


def unscale():
    tensor = torch.ones(2)
    tensor.grad = torch.ones(2)
    fake = types.SimpleNamespace(
        loss_scale=2.0, clip_grad=0.0, fp32_partitioned_groups_flat=[tensor], torch_autocast_gradscaler=None
    )
    get(f"{STAGE3}.unscale_and_clip_grads")(fake, 0, torch.tensor(1.0))
    return tensor.grad.tolist()


def private_method():
    config = {"difficulty": [3, 7], "max_step": [5]}
    scheduler = "deepspeed.runtime.data_pipeline.curriculum_scheduler:CurriculumScheduler"
    made = bare(scheduler, state={"schedule_config": config, "schedule": config})
    return made._CurriculumScheduler__fixed_discrete_get_difficulty(1)


def classmethod_():
    try:
        get("deepspeed.runtime.utils:PartitionedTensor").from_meta(torch.zeros(2), None, None)
    except AssertionError:
        return "refuses what is no integer tensor"


def closure():
    return str(CONSTRUCTOR(2, device="cpu").dtype)


def topology():
    made = get("deepspeed.runtime.pipe.topology:PipeDataParallelTopology")(num_pp=2, num_dp=2)
    return made.get_rank(pipe=1, data=0)


def sparse():
    return get("deepspeed.runtime.sparse_tensor:SparseTensor").type()


def schedule():
    steps = get("deepspeed.runtime.pipe.schedule:InferenceSchedule")(micro_batches=2, stages=1, stage_id=0).steps()
    return [str(commands) for commands in steps]


# kind -> what a release may have of it: target, call, the statement put in
KINDS = {
    "plain method": [("deepspeed.runtime.pipe.topology:ProcessTopology.get_rank", topology, MARK)],
    "method behind instrument_w_nvtx": [(f"{STAGE3}.unscale_and_clip_grads", unscale, MARK)],
    "method with super()": [("deepspeed.runtime.pipe.topology:PipeDataParallelTopology.__init__", topology, MARK)],
    "method with private names": [
        (
            f"{COORDINATOR}.is_complete_trace",
            lambda: bare(COORDINATOR, _PartitionedParameterCoordinator__trace_mode=1).is_complete_trace(),
            MARK.replace("'seen'", "'seen' if self.__trace_mode == 1 else ''"),
        )
    ],
    "method with a private name of its own": [
        (
            "deepspeed.runtime.data_pipeline.curriculum_scheduler:CurriculumScheduler.__fixed_discrete_get_difficulty",
            private_method,
            MARK,
        )
    ],
    "nested function, made earlier by a decorator": [
        ("deepspeed.utils.nvtx:instrument_w_nvtx.<locals>.wrapped_fn", unscale, MARK)
    ],
    "nested function with a closure, made earlier": [
        (
            "deepspeed.runtime.zero.partition_parameters:zero_wrapper_for_fp_tensor_constructor.<locals>.wrapped_fn",
            closure,
            MARK.replace("'seen'", "'seen' if fn is not None and target_fp_dtype is not None else ''"),
        )
    ],
    "staticmethod": [("deepspeed.runtime.sparse_tensor:SparseTensor.type", sparse, MARK)],
    "classmethod": [
        ("deepspeed.runtime.utils:PartitionedTensor.from_meta", classmethod_, MARK.replace("'seen'", "cls and 'seen'"))
    ],
    "generator": [("deepspeed.runtime.pipe.schedule:InferenceSchedule.steps", schedule, MARK)],
    "function imported by name elsewhere": [
        (
            "deepspeed.runtime.utils:call_to_str",
            lambda: get("deepspeed.runtime.pipe.schedule:call_to_str")("f", 1, b=2),
            MARK,
        )
    ],
}
COMPILED = ("method behind instrument_w_nvtx", "staticmethod", "function imported by name elsewhere")


def pickled(value):
    try:
        return pickle.dumps(value).hex()
    except Exception as error:
        return type(error).__name__


def anchor_of(target):
    """(source, count, line) of the first statement of the function that is not its docstring."""
    module, _, qualname = target.partition(":")
    block = source.find_blocks(module_file(module), qualname)[0]
    tree = anchors.inner_function(block.parse(), qualname)
    first = tree.body[1 if ast.get_docstring(tree) is not None else 0]
    text = ast.unparse(first)
    return text, len(anchors.statements(tree, text)), first.lineno


def patch_of(target, text):
    anchor, count, _ = anchor_of(target)
    return Patch("t", Severity.CRASH, {}, (Edit(target, text, before=anchor, count=count),), "", {}, None)


def calls_of(call):
    SEEN.clear()
    return call(), len([each for each in SEEN if each == "seen"])


def traced(call):
    try:
        call()
    except RuntimeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        return [[frame.filename, frame.lineno, frame.line] for frame in frames if frame.filename != __file__][-1]


def examine(target, call, text):
    name, _, qualname = target.partition(":")
    module = importlib.import_module(name)
    outer, _ = source.split_target(qualname)
    function = rewrite.find_function(module, outer)
    original, raw = function.__code__, attributes.attribute(module, outer)[2]
    raw = getattr(raw, "__func__", raw)
    shown, dumped = inspect.getsource(function), pickled(raw)
    _, _, line = anchor_of(target)
    patch = patch_of(target, text)
    result = {"target": target, "judged": verdict.by_source(patch, Cache()).outcome.value, "before": calls_of(call)}
    (handle,) = engine.apply("probe", patch, module, Cache())
    result["edited"] = calls_of(call)
    result["code_swapped"] = function.__code__ is not original
    result["source_as_shown"] = inspect.getsource(function) == shown
    result["pickle_as_before"] = pickled(raw) == dumped
    handle.undo()
    result["original_code_back"] = function.__code__ is original
    result["reverted"] = calls_of(call)
    (handle,) = engine.apply("probe", patch_of(target, "raise RuntimeError('probe')"), module, Cache())
    result["trace"] = traced(call)
    handle.undo()
    path = os.path.realpath(module.__file__)
    with open(path, encoding="utf-8") as file:
        result["line_on_disk"] = [module.__file__, line, file.read().splitlines()[line - 1].strip()]
    result["original_code_back"] = result["original_code_back"] and function.__code__ is original
    return result


class Model(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        y = x * 2
        self.call()
        return y + 1


def compiled(target, call, text):
    (handle,) = engine.apply("probe", patch_of(target, text), sys.modules[target.partition(":")[0]], Cache())
    SEEN.clear()
    x = torch.ones(3)
    value = torch.compile(Model(call), backend="eager")(x).tolist()
    handle.undo()
    torch._dynamo.reset()
    return {"value": value, "seen": SEEN.count("seen")}


importlib.import_module("deepspeed.runtime.zero.stage3")
_wrap = get("deepspeed.runtime.zero.partition_parameters:zero_wrapper_for_fp_tensor_constructor")
CONSTRUCTOR = _wrap(*(torch.zeros, torch.float16, torch.device("cpu"))[: len(inspect.signature(_wrap).parameters)])
results = {}
for kind, candidates in KINDS.items():
    absent = []
    for target, call, text in candidates:
        try:
            importlib.import_module(target.partition(":")[0])
            outer, _ = source.split_target(target.partition(":")[2])
            attributes.attribute(sys.modules[target.partition(":")[0]], outer)
        except (ImportError, Refused) as error:
            absent.append(f"{target}: {error}")
            continue
        try:
            results[kind] = examine(target, call, text)
            if kind in COMPILED:
                results[kind]["compiled"] = compiled(target, call, text)
        except Exception:
            results[kind] = {"target": target, "error": traceback.format_exc()}
        break
    else:
        results[kind] = {"absent": absent}
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(results, out)
