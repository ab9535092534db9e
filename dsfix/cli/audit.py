"""`audit FILE`: does the installed DeepSpeed compute the same as PyTorch with this config?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import textwrap
import time
from typing import TYPE_CHECKING

from .. import versions
from ..audit.plan import PHASES
from ..check import arguments
from . import prepare
from .exits import INTERRUPTED, NO_ANSWER, NO_DEEPSPEED, OK, TROUBLE, CommandError
from .printing import output

if TYPE_CHECKING:
    from ..audit.agreement import AuditVerdict
    from ..audit.resolve import ResolvedConfig
    from ..audit.trial import Command
    from .printing.audit_report import Audit

NAME = "audit"
HELP = "train a small model with this config and compare every step with plain PyTorch"
_PATIENCE, _LEAST = 3, 30.0  # how many times the time of the audited run, plus seconds, a trial may take


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = textwrap.fill(
        "Check whether DeepSpeed computes correctly with a config: train a small model for a few steps with DeepSpeed "
        "and the patches that apply here, with DeepSpeed alone, and in one process with PyTorch. Sizes in the config "
        "are scaled down. Differences beyond rounding are reported with their size, first step and parameters, and the "
        "patch that fixes them.",
        output.width(),
    )
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = "\n".join(
        [
            "exit status: 0 DeepSpeed with dsfix agrees; 1 it differs, or nothing could be compared;",
            "  2 the command line or the config is wrong or cannot be audited; 3 no DeepSpeed or no torch;",
            "  130 interrupted, with the results so far",
            "",
            'model arguments, also used for "auto" values:',
            *(f"  {name:<28} {what}" for name, (_, what) in arguments.KNOWN.items()),
        ]
    )
    command.add_argument("file", metavar="FILE", help="ds_config.json, or accelerate's YAML")
    add, seconds = command.add_argument, prepare.number(1, 86400)
    add("--ranks", type=prepare.number(1, 8), metavar="N", help="processes, 1 to 8 (default: accelerate's, else 2)")
    add("--steps", type=prepare.number(2, 50), metavar="N", help="optimizer steps, 2 to 50 (default: 6)")
    add("--device", choices=("cuda", "cpu"), help="cuda: a GPU, else the emulated device; cpu: DeepSpeed on the CPU")
    add("--freeze", choices=("none", "part", "base"), help="which parameters are frozen (default: part; base for LoRA)")
    add(
        "--backwards",
        choices=("loss", "dict", "two", "tensor"),
        help="engine.backward(loss), the same for a model that returns a dictionary, two losses per forward, or "
        "loss.backward()",
    )
    add("--zero-init", action=argparse.BooleanOptionalAction, help="build the model under deepspeed.zero.Init")
    add(
        "--schedule",
        type=schedule,
        metavar="NAME",
        help="order of work on streams: early, late, ahead or random:SEED (emulated device only)",
    )
    add("--phases", type=_phases, metavar="NAME,…", help=f"{', '.join(PHASES)} or none (default: all)")
    add("--model-args", action="append", default=[], metavar="KEY=VALUE[,…]", help="see below; may be repeated")
    add("--no-search", action="store_true", help="only compare, with and without dsfix")
    add("--time", type=seconds, default=300, metavar="SECONDS", help="limit of the search (default: 300)")
    add("--timeout", type=seconds, default=120, metavar="SECONDS", help="limit per trial (default: 120)")


def schedule(text: str) -> str:
    from ..lab.cuda.load import parse

    try:
        parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _phases(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    for name in names:
        if name not in PHASES:
            raise argparse.ArgumentTypeError(f"must be some of {', '.join(PHASES)}, or none; got {name!r}")
    return names


def run(options: argparse.Namespace) -> int:
    try:
        prepare.require_deepspeed()
        if versions.installed("torch") is None:
            raise CommandError(f"torch is not installed for {sys.executable}: nothing to audit", NO_DEEPSPEED)
        prepare.require_temporary_directory()
        prepare.require_same_packages(NAME)
        resolved = _resolved(options)
    except CommandError as complaint:
        if complaint.status == NO_ANSWER:  # processes cannot be started
            complaint.status = TROUBLE
        return prepare.report_refusal(complaint, options.json)
    from .printing import audit_report

    audit = audit_report.Audit(options.file, resolved)
    prepare.lower_priority()
    started = time.monotonic()
    try:
        _audit(audit, options)
    except KeyboardInterrupt:
        audit.interrupted = True
    audit.seconds = time.monotonic() - started
    options.status = status = INTERRUPTED if audit.interrupted else OK if audit.agrees else TROUBLE
    if options.json:
        output.print_json(audit_report.as_json(audit))
    else:
        print(*map(output.printable, audit_report.text(audit)), sep="\n")
    return status


def _resolved(options: argparse.Namespace) -> ResolvedConfig:
    from ..audit.draft import MOST_RANKS, Options
    from ..audit.resolve import resolve

    try:
        given = arguments.parse(options.model_args)
        device, ranks, why = _device(options.device)
        if options.schedule and (device == "cpu" or ranks is not None):
            raise CommandError(f"--schedule requires the emulated CUDA device{why and f'; {why}'}")
        named = {field.name for field in dataclasses.fields(Options)} - {"arguments", "device", "most_ranks"}
        chosen = Options(
            **{name: getattr(options, name) for name in named},
            arguments=given,
            device=device,
            most_ranks=ranks or MOST_RANKS,
        )
        resolved = resolve(options.file, chosen)
    except ValueError as error:
        raise CommandError(str(error)) from None
    if ranks is not None and resolved.plan.ranks > ranks:
        raise CommandError(f"{resolved.plan.ranks} ranks need as many GPUs, found {ranks}: use --ranks {ranks}")
    return dataclasses.replace(resolved, notes=(*resolved.notes, why)) if why else resolved


def _device(wanted: str | None) -> tuple[str, int | None, str]:
    """Returns the device, the number of GPUs or None, and why it is the CPU if that was not requested."""
    from ..lab import accelerator
    from ..lab.cuda import compiling
    from ..lab.distributions import LabUnavailable

    if wanted == "cpu":
        return "cpu", None, ""
    try:
        if accelerator.has_gpu():
            import torch

            return "cuda", torch.cuda.device_count(), ""
        compiling.library()
    except LabUnavailable as error:
        if wanted is not None:
            raise CommandError(str(error)) from None
        return "cpu", None, f"on DeepSpeed's CPU accelerator: {error}"
    return "cuda", None, ""


def _audit(audit: Audit, options: argparse.Namespace) -> None:
    from ..audit.agreement import AuditVerdict
    from ..audit.trial import ranks
    from ..lab.distributions import LabUnavailable

    try:
        with ranks(audit.resolved.plan.device) as command:
            _compare(audit, options, command)
    except LabUnavailable as error:
        audit.with_dsfix = AuditVerdict(failed=str(error))


def _compare(audit: Audit, options: argparse.Namespace, command: Command) -> None:
    from ..audit import operators
    from ..audit.search import Search
    from ..audit.trial import compiled, trial
    from .printing.audit_report import in_short

    plan = audit.resolved.plan
    operator = operators.needed(plan)
    run = functools.partial(trial, command=command)
    shown = output.Progress(3 if operator else 2)
    if operator:
        shown.start(f"compiling DeepSpeed's {operator}, unless it is in the cache")
        shown.done(f"{compiled(plan, command):.1f} s")
    shown.start("with dsfix")
    audit.with_dsfix = verdict = run(plan, timeout=options.timeout)
    shown.done(in_short(verdict), 1 if verdict.patches else 2)
    if not verdict.patches:
        return
    shown.start("without dsfix")
    audit.without = run(plan, patched=False, timeout=options.timeout)
    shown.done(in_short(audit.without))
    if options.no_search or verdict.failed or (verdict.agrees and audit.without.agrees):
        return
    shown = output.Progress(None)

    def watched(what: str | None, seen: AuditVerdict | None) -> None:
        if what is not None:
            shown.start(what)
        if seen is not None:
            shown.done(in_short(seen))

    patience = min(options.timeout, _LEAST + _PATIENCE * verdict.seconds)
    search = Search(run, plan, verdict, time.monotonic() + options.time, patience, watched)
    audit.found = search.found
    search.run(audit.without, audit.resolved.suspects)
