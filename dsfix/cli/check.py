"""`check FILE`: a DeepSpeed config, or accelerate's own config file, against the rules."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from ..check import arguments
from ..rules import Level
from .exits import OK, TROUBLE, Complaint
from .printing import output

if TYPE_CHECKING:
    from ..check.checking import Checked

NAME = "check"
HELP = "what is wrong with a DeepSpeed config: mistakes, misspelled and removed keys, known bugs that it meets"
_WIDTH = 110  # columns of text


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = textwrap.fill(
        f"{HELP}. Reads JSON with comments and trailing commas as DeepSpeed does, and accelerate's YAML with its "
        "deepspeed_config block. Imports neither torch nor DeepSpeed; the keys are taken from the installed "
        "DeepSpeed's source, for another release from a table.",
        _WIDTH,
    )
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = "\n".join(
        [
            "exit status: 0 no error found; 1 an error was found; 2 the command line or the file is wrong",
            "",
            "model arguments:",
            *(f"  {name:<28} {what}" for name, (_, what) in arguments.KNOWN.items()),
        ]
    )
    command.add_argument("file", metavar="FILE", help="ds_config.json, or accelerate's YAML")
    command.add_argument("--world-size", type=_positive, metavar="N", help="processes of the job")
    command.add_argument("--deepspeed", metavar="VERSION", help="check for this release (default: the installed one)")
    command.add_argument(
        "--plain",
        action="store_true",
        help='nobody puts values in place of "auto": the file goes to deepspeed.initialize as it is '
        "(default: transformers or accelerate does)",
    )
    command.add_argument(
        "--model-args",
        action="append",
        default=[],
        metavar="KEY=VALUE[,…]",
        help="the training around the config, e.g. per_device_train_batch_size=2,bf16=true,lora=peft; may be repeated",
    )


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of processes")
    return value


def run(options: argparse.Namespace) -> int:
    from ..check.checking import check

    try:
        checked = check(
            options.file,
            world_size=options.world_size,
            deepspeed=options.deepspeed,
            given=arguments.parse(options.model_args),
            plain=options.plain,
        )
    except ValueError as error:
        raise Complaint(str(error)) from None
    states = checked.states()
    if options.json:
        output.print_json(
            {
                "file": options.file,
                "deepspeed": checked.release,
                "assumed": checked.assumed,
                "findings": [finding.as_json() for finding in checked.findings],
                "patches": {name: {"state": state, "reason": why} for name, (state, why) in states.items()},
            }
        )
    else:
        _print(options.file, checked, states)
    return TROUBLE if any(finding.level is Level.ERROR for finding in checked.findings) else OK


def _print(file: str, checked: Checked, states: dict[str, tuple[str, str]]) -> None:
    counts = Counter(finding.level for finding in checked.findings)
    said = ", ".join(f"{counts[level]} {level.value}{'s' * (counts[level] > 1)}" for level in Level if counts[level])
    print(f"{file}, deepspeed {checked.release}{'' if checked.installed else ' (not installed here)'}: ", end="")
    print(said or "nothing found")
    for finding in checked.findings:
        print(f"\n{finding.level.value:<8} {finding.where or 'this config'}    [{finding.rule}]")
        _indented(finding.what)
        _indented(f"Remedy: {finding.remedy}")
        for patch_id in finding.patches:
            if patch_id in states:
                _indented(f"Patch {patch_id}: {states[patch_id][0]}")
    if checked.assumed:
        print("\nAssumed: " + "; ".join(checked.assumed) + ".")


def _indented(text: str) -> None:
    print(textwrap.fill(text, _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 11, break_on_hyphens=False))
