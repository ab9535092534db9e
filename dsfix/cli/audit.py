"""`audit FILE`: does the installed DeepSpeed, with this config, compute what PyTorch computes?"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Callable

from ..audit.plan import PHASES
from ..check import arguments
from ..engine import versions
from . import processes, require
from .exits import INTERRUPTED, NO_DEEPSPEED, OK, TROUBLE, UNSEEN, Complaint
from .printing import output, progress

if TYPE_CHECKING:
    from ..audit.agreement import Verdict
    from ..audit.report import Audit
    from ..audit.resolve import Resolved

NAME = "audit"
HELP = "trains a small model with this config and compares every step with plain PyTorch: does DeepSpeed compute right?"
_WIDTH = 110  # columns of text
_PATIENCE, _LEAST = 3, 30.0  # a trial of the search may take that many times the audited one, and that many seconds


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = textwrap.fill(
        f"{HELP} Takes ds_config.json (or accelerate's YAML), shrinks sizes only, and trains for a few steps: with "
        "DeepSpeed and dsfix's patches as they apply here, with DeepSpeed alone, and in one process with PyTorch. "
        "Where they differ by more than rounding it says what, by how much, from which step and for which parameters, "
        "which patch cures it, and which is the smallest change of the config that avoids it.",
        _WIDTH,
    )
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = "\n".join(
        [
            "exit status: 0 agrees, with dsfix's patches as they apply here; 1 differs, or nothing could be compared;",
            "  2 the command line or the config is wrong, or cannot be audited; 3 no DeepSpeed, or no torch;",
            "  130 interrupted, what was found until then is printed",
            "",
            'model arguments, which also stand for values that are "auto":',
            *(f"  {name:<28} {what}" for name, (_, what) in arguments.KNOWN.items()),
        ]
    )
    command.add_argument("file", metavar="FILE", help="ds_config.json, or accelerate's YAML")
    number = command.add_argument
    number("--ranks", type=_number(1, 8), metavar="N", help="1 to 8 processes (default: accelerate's, else 2)")
    number("--steps", type=_number(2, 50), metavar="N", help="optimizer steps, 2 to 50 (default: 6)")
    choose = command.add_argument
    choose(
        "--device", choices=("cuda", "cpu"), help="cuda: a GPU, else the emulated device; cpu: DeepSpeed's CPU class"
    )
    choose("--optimizer", metavar="NAME", help="class of torch.optim that the script passes to deepspeed.initialize")
    choose(
        "--freeze", choices=("none", "part", "base"), help="which parameters are frozen (default: part; base for LoRA)"
    )
    choose("--checkpointing", choices=("none", "reentrant", "non-reentrant"), help="gradient checkpointing")
    choose(
        "--backwards",
        choices=("loss", "dict", "two", "tensor"),
        help="what ends a forward: engine.backward(loss), the same with a model that returns a dictionary, two losses, "
        "or loss.backward()",
    )
    choose("--zero-init", action=argparse.BooleanOptionalAction, help="the model is built under deepspeed.zero.Init")
    choose("--lora", action="store_true", help="the model has adapters, and all else is frozen")
    number(
        "--moe", type=_number(1, 4), metavar="K", help="the model has DeepSpeed's MoE layer: K of 8 experts per token"
    )
    number("--ep-size", type=_number(1, 8), metavar="N", help="ranks that share the experts of --moe (default: 1)")
    choose("--phases", type=_phases, metavar="NAME,…", help=f"of {', '.join(PHASES)}, or none (default: all)")
    choose("--model-args", action="append", default=[], metavar="KEY=VALUE[,…]", help="see below; may be repeated")
    choose("--no-search", action="store_true", help="only say what differs, with dsfix and without")
    choose("--time", type=_number(1, 86400), default=300, metavar="SECONDS", help="limit of the search (default: 300)")
    choose(
        "--timeout", type=_number(1, 86400), default=120, metavar="SECONDS", help="limit of one trial (default: 120)"
    )


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
        return int(text)

    return read


def _phases(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    for name in names:
        if name not in PHASES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PHASES)}, none")
    return names


def run(options: argparse.Namespace) -> int:
    try:
        require.require_deepspeed()
        if versions.installed("torch") is None:
            raise Complaint(f"torch is not installed for {sys.executable}: nothing to audit", NO_DEEPSPEED)
        processes.require_temporary_directory()
        processes.require_same_packages(NAME)
        resolved = _resolved(options)
    except Complaint as complaint:
        if complaint.status == UNSEEN:  # of what starts processes
            complaint.status = TROUBLE
        return require.refused(complaint, options.json)
    from ..audit import report

    audit = report.Audit(options.file, resolved)
    processes.be_kind()
    started = time.monotonic()
    try:
        _audit(audit, options)
    except KeyboardInterrupt:
        audit.interrupted = True
    audit.seconds = time.monotonic() - started
    status = INTERRUPTED if audit.interrupted else OK if audit.agrees else TROUBLE
    try:
        if options.json:
            output.print_json(report.as_json(audit))
        else:
            print(*map(output.printable, report.text(audit)), sep="\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough; the exit status still counts
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def _resolved(options: argparse.Namespace) -> Resolved:
    from ..audit.resolve import MOST_RANKS, Options, resolve

    try:
        given = arguments.parse(options.model_args)
        device, ranks, why = _device(options.device)
        named = {each.name for each in dataclasses.fields(Options)} - {"arguments", "device", "most_ranks"}
        chosen = Options(
            **{name: getattr(options, name) for name in named},
            arguments=given,
            device=device,
            most_ranks=ranks or MOST_RANKS,
        )
        resolved = resolve(options.file, chosen)
    except ValueError as error:
        raise Complaint(str(error)) from None
    if ranks is not None and resolved.plan.ranks > ranks:
        raise Complaint(f"{resolved.plan.ranks} ranks need as many GPUs, and here are {ranks}: --ranks {ranks}")
    return dataclasses.replace(resolved, notes=(*resolved.notes, why)) if why else resolved


def _device(wanted: str | None) -> tuple[str, int | None, str]:
    """The device, its number where it is a GPU, and why it is the CPU where nobody asked for it."""
    from ..lab import cuda_device
    from ..lab.cuda import compiling
    from ..lab.errors import LabUnavailable

    if wanted == "cpu":
        return "cpu", None, ""
    try:
        if cuda_device.has_gpu():
            import torch

            return "cuda", torch.cuda.device_count(), ""
        compiling.library()
    except LabUnavailable as error:
        if wanted is not None:
            raise Complaint(str(error)) from None
        return "cpu", None, f"on DeepSpeed's CPU accelerator: {error}"
    return "cuda", None, ""


def _audit(audit: Audit, options: argparse.Namespace) -> None:
    """Runs what is to be run, adding to `audit` as it goes."""
    from ..audit.report import in_short
    from ..audit.search import Search
    from ..audit.trial import trial

    plan = audit.resolved.plan
    with progress.shown(2) as shown:
        shown.start("with dsfix")
        audit.with_dsfix = verdict = trial(plan, timeout=options.timeout)
        shown.done(in_short(verdict), 1 if verdict.patches else 2)
        if not verdict.patches:
            return
        shown.start("without dsfix")
        audit.without = trial(plan, patched=False, timeout=options.timeout)
        shown.done(in_short(audit.without))
    if options.no_search or verdict.failed or (verdict.agrees and audit.without.agrees):
        return
    with progress.shown(None) as shown:

        def watched(what: str | None, seen: Verdict | None) -> None:
            if what is not None:
                shown.start(what)
            if seen is not None:
                shown.done(in_short(seen))

        patience = min(options.timeout, _LEAST + _PATIENCE * verdict.seconds)
        search = Search(trial, plan, verdict, time.monotonic() + options.time, patience, watched)
        audit.found = search.found
        search.run(audit.without, audit.resolved.suspects, audit.resolved.sizes)
