"""What the frames of a traceback tell of an error that no signature matches."""

from __future__ import annotations

import re

from .lines import Line
from .segments import Segment

_FRAME = re.compile(r'^\s*(?:File "([^"\n]+)", line \d+, in|(\S+\.py):\d+ in) (\S+)')  # Python's, or rich's
_PACKAGE = re.compile(r"(?:site|dist)-packages[/\\]([^/\\]+)")
_OURS = re.compile(r"(?:^|[/\\])deepspeed[/\\](?=\w+(?:[/\\]|\.py$))")
_CHECKPOINT = re.compile(r"checkpoint|state_dict|16bit_model")

# the beginning of a path within DeepSpeed -> what that code does, and what separates its errors from others
_PARTS = (
    ("runtime/zero/config", "the config is read: `python -m dsfix check CONFIG`"),
    ("runtime/zero/stage_1_and_2", "ZeRO-1 and ZeRO-2. Stage 0 or 3 tells whether it is of this stage"),
    ("runtime/zero/", "ZeRO-3. Stage 2 tells whether it is of this stage"),
    ("runtime/pipe/", "the pipeline engine. One stage tells whether it is of the pipeline"),
    ("runtime/swap_tensor/", "offload to NVMe. Offload to the CPU tells whether it is of NVMe"),
    ("runtime/config", "the config is read: `python -m dsfix check CONFIG`"),
    ("runtime/lr_schedules", "the scheduler of the config: `python -m dsfix check CONFIG`"),
    ("runtime/activation_checkpointing/", "DeepSpeed's activation checkpointing. torch's tells whether it is of it"),
    ("runtime/hybrid_engine", "the hybrid engine. The job without it tells whether it is of it"),
    ("inference/config", "the config of init_inference is read"),
    ("module_inject/", "kernel injection or tensor parallelism, which depend on the model's class and release"),
    ("model_implementations/", "kernel injection. replace_with_kernel_inject=False tells whether it is of it"),
    ("inference/", "DeepSpeed's inference engine"),
    ("ops/op_builder/", "an operator is compiled or loaded: the compiler's lines, above, tell why"),
    ("moe/", "mixture of experts"),
    ("launcher/", "the launcher: the error of the job itself is in another traceback"),
    ("comm/", "communication between the ranks: an error of another rank may be the first one"),
    ("checkpoint/", "a checkpoint is written, read or converted"),
    ("utils/zero_to_fp32", "a checkpoint is converted"),
    ("sequence/", "sequence parallelism"),
)


def told(segment: Segment, raised: Line) -> str:
    """Returns where the error was raised, and from which part of DeepSpeed; "" if no frame is there."""
    frames = [found for line in segment.lines if line.number <= raised.number if (found := frame(line.text))]
    if not frames:
        return ""
    path, name = frames[-1]
    last = f"{short(path)}, in {name}"
    ours = [(path, name) for path, name in frames if _OURS.search(path)]
    if not ours:
        return f"{last}. DeepSpeed is not in the traceback; a run without its config tells whether it has a part in it."
    path, name = ours[-1]
    within = _within(path)
    does = next((does for part, does in _PARTS if within.startswith(part)), "")
    if not does and _CHECKPOINT.search(name):
        does = "a checkpoint is written or read"
    place = last if (path, name) == frames[-1] else f"{last}, called from {short(path)}, in {name}"
    return f"{place}: {does}." if does else f"{place}."


def frame(line: str) -> tuple[str, str] | None:
    """Returns the path and the function of a frame's line."""
    found = _FRAME.match(line)
    return (found[1] or found[2], found[3]) if found else None


def _within(path: str) -> str:
    return _OURS.split(path)[-1].replace("\\", "/")


def short(path: str) -> str:
    """Returns a path without the directories of the machine: from the package on, or the file's name."""
    if _OURS.search(path):
        return f"deepspeed/{_within(path)}"
    if found := _PACKAGE.search(path):
        return path[found.start(1) :].replace("\\", "/")
    return re.split(r"[/\\]", path)[-1]
