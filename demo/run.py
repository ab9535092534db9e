"""The demonstration: a training script on DeepSpeed 0.14.2, without dsfix and with `import dsfix` as its first line.

``python demo/run.py --reference DIR`` runs train.py with this Python, whose environment has DeepSpeed 0.14.2; DIR holds
DeepSpeed 0.14.4, the reference. Exit status 0 if every expectation is met, else 1.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import platform
import re
import sys
import tempfile
from pathlib import Path

from runs import HERE, NotMet, Run, expect, python, train

VERSION, REFERENCE = "0.14.2", "0.14.4"
PATCH = "zero3_offload_clip_device"
STEPS = 30
FALL = 2 / 3  # maximum of the mean of the last five losses, relative to the first loss
TOLERANCE = 1e-5  # the global gradient norm is a double in 0.14.4, a float32 in 0.14.2; measured: 1e-6

IMPORT_ERROR = (
    "ImportError: cannot import name '_get_socket_with_port' from 'torch.distributed.elastic.agent.server.api'"
)
DEVICE_ERROR = (
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
)


class Demo:
    """The sections in order; each prints what it did and returns its verdict, or raises NotMet."""

    def __init__(self, reference: Path, scratch: Path) -> None:
        self.reference = reference
        self.script = HERE / "train.py"
        self.script_with_dsfix = scratch / "train_with_dsfix.py"
        self.losses: list[float] = []

    def import_fails(self) -> str:
        """Without dsfix: DeepSpeed 0.14.2 does not import"""
        run = train(self.script, STEPS)
        expect_crashed(run, IMPORT_ERROR)
        return "it crashes at `import deepspeed`: this torch no longer has a name that DeepSpeed 0.14.2 imports."

    def step_fails(self) -> str:
        """Without dsfix, with the names missing from torch and numpy restored by hand: the first step crashes"""
        run = train(self.script, STEPS, DEMO_OLD_NAMES="1")
        expect_started(run, VERSION)
        expect_crashed(run, DEVICE_ERROR)
        raised_there = "stage3.py" in run.last_frame and run.last_frame.endswith(", in unscale_and_clip_grads")
        expect(raised_there, "the error was not raised in unscale_and_clip_grads of stage3.py.")
        return "the first step crashes in DeepSpeed's unscale_and_clip_grads; dsfix was not active."

    def trains(self) -> str:
        """With `import dsfix` as the first line: it trains"""
        before = self.script.read_text(encoding="utf-8").splitlines(keepends=True)
        after = ["import dsfix  # noqa: F401 isort: skip\n", *before]
        self.script_with_dsfix.write_text("".join(after), encoding="utf-8")
        print("".join(difflib.unified_diff(before, after, self.script.name, self.script_with_dsfix.name, n=1)))
        run = train(self.script_with_dsfix, STEPS)
        logged = [line for line in run.errors.splitlines() if line.startswith("[dsfix]")]
        print(*logged, sep="\n")
        losses = expect_trained(run, VERSION)
        shown = (HERE.parent / "README.md").read_text(encoding="utf-8")
        expect(all(line in shown for line in (DEVICE_ERROR, *logged[1:])), "README.md shows a different log.")
        last = sum(losses[-5:]) / 5
        print(f"loss of the first step {losses[0]:.4f}, mean of the last five steps {last:.4f}")
        expect(last < FALL * losses[0], f"the loss did not fall below {FALL:.2f} of its first value.")
        self.losses = losses
        return f"{STEPS} steps on DeepSpeed {VERSION}, and the loss falls."

    def equals_reference(self) -> str:
        """The script without dsfix on DeepSpeed 0.14.4, which has the fix: the same losses"""
        expect(bool(self.losses), "nothing to compare: the script with dsfix did not train.")
        reference = expect_trained(train(self.script, STEPS, PYTHONPATH=str(self.reference)), REFERENCE)
        differences = [ours - theirs for ours, theirs in zip(self.losses, reference)]
        print(f"Equal up to rounding: the global gradient norm is a double in {REFERENCE}, a float in {VERSION}.\n")
        print(f"step  loss on {VERSION} with dsfix  loss on {REFERENCE}  difference")
        for step, row in enumerate(zip(self.losses, reference, differences), 1):
            print("{:4d}  {:25.7f}  {:14.7f}  {:+10.1e}".format(step, *row))
        expect(all(abs(each) <= TOLERANCE for each in differences), f"a loss differs by more than {TOLERANCE:.0e}.")
        largest = max(abs(each) for each in differences)
        return f"{STEPS} losses equal within {TOLERANCE:.0e}; the largest difference is {largest:.1e}."

    def listed(self) -> str:
        """What dsfix reports about this environment"""
        run = python(["-m", "dsfix", "list"], {}, {})
        print(run.output, end="")
        expect(run.status == 0, f"the command ended with status {run.status}: {run.last_error}")
        applies = re.search(rf"^  {PATCH} ", run.output, re.MULTILINE)
        expect(applies is not None, f"it does not report that {PATCH} applies.")
        return f"{PATCH} applies to this environment."


def expect_started(run: Run, version: str) -> None:
    started = f"deepspeed {version} trains on cuda:0" in run.output.splitlines()
    expect(started, f"DeepSpeed {version} did not start on cuda:0: {run.last_error}")


def expect_crashed(run: Run, error: str) -> None:
    expect(run.status != 0, "the script did not fail.")
    print(run.traceback_end(frames=3))
    expect(run.last_error.startswith(error), f"the last error is not `{error}`.")
    expect(not run.losses(), "the script made a step before it crashed.")
    expect("[dsfix]" not in run.errors, "dsfix was active in a run without it.")


def expect_trained(run: Run, version: str) -> list[float]:
    if run.status < 0:  # a signal
        print("\n".join(run.errors.splitlines()[-60:]))
    elif run.status != 0:
        print(run.traceback_end(frames=3))
    expect(run.status == 0, f"the script ended with status {run.status}: {run.last_error}")
    expect_started(run, version)
    expect(len(run.losses()) == STEPS, f"expected {STEPS} losses, got {len(run.losses())}.")
    return run.losses()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reference", type=Path, required=True, help="directory that holds DeepSpeed 0.14.4")
    reference = parser.parse_args().reference.resolve()
    if not (reference / "deepspeed").is_dir():
        parser.error(f"no DeepSpeed in {reference}")
    try:
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("deepspeed", "torch", "transformers")]
    except importlib.metadata.PackageNotFoundError as missing:
        parser.error(f"{missing.name} is not installed")
    print(f"Python {platform.python_version()}, {', '.join(versions)}.")
    print("Each run: one rank, OMP_NUM_THREADS=1, HF_HUB_OFFLINE=1, demo/machine on PYTHONPATH, which sets up")
    print("cuda:0: the GPU of this machine or, without one, the emulated CUDA device of dsfix.lab.")
    unmet = 0
    with tempfile.TemporaryDirectory() as scratch:
        demo = Demo(reference, Path(scratch))
        for section in (demo.import_fails, demo.step_fails, demo.trains, demo.equals_reference, demo.listed):
            print(f"\n== {section.__doc__}\n")
            try:
                print(f"\n=> As expected: {section()}")
            except NotMet as reason:
                unmet += 1
                print(f"\n=> NOT MET: {reason}")
    print(f"\n{unmet} expectations were not met." if unmet else "\nEvery expectation was met.")
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
