"""`check FILE`: checks a DeepSpeed config, or accelerate's config file, against the rules."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..check import arguments
from ..rules import Level
from . import prepare
from .exits import BAD_USAGE, OK, TROUBLE, CommandError
from .printing import output

if TYPE_CHECKING:
    from ..check.checking import CheckResult

NAME = "check"
HELP = "check a DeepSpeed config for errors, misspelled and removed keys, and known bugs that it triggers"
_WIDTH = 110  # columns of the help text


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = textwrap.fill(
        f"{HELP[0].upper()}{HELP[1:]}. Reads JSON with comments and trailing commas, as DeepSpeed does, and "
        "accelerate's YAML with a deepspeed_config block. Imports neither torch nor DeepSpeed: the known keys come "
        "from the source of the installed DeepSpeed, or from a table for other releases.",
        _WIDTH,
    )
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = "\n".join(
        [
            "exit status: 0 no error found; 1 an error was found; 2 the command line or a file is invalid",
            "",
            "model arguments:",
            *(f"  {name:<28} {what}" for name, (_, what) in arguments.KNOWN.items()),
        ]
    )
    command.add_argument("files", metavar="FILE", nargs="+", help="ds_config.json, or accelerate's YAML")
    world_size = prepare.number(1, 1 << 20)
    command.add_argument("--world-size", type=world_size, metavar="N", help="number of processes of the job")
    command.add_argument("--deepspeed", metavar="VERSION", help="check for this release (default: the installed one)")
    command.add_argument(
        "--plain",
        action="store_true",
        help="the job passes the file to deepspeed.initialize unchanged "
        '(default: transformers or accelerate fills in "auto" first)',
    )
    command.add_argument(
        "--model-args",
        action="append",
        default=[],
        metavar="KEY=VALUE[,…]",
        help="facts about the training that the config does not contain, e.g. per_device_train_batch_size=2,bf16=true,"
        "lora=peft; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    from ..check.checking import check

    try:
        given = arguments.parse(options.model_args)
    except ValueError as error:
        raise CommandError(str(error)) from None
    status = OK
    printed: list[dict[str, Any]] = []
    shown = False
    for file in options.files:
        try:
            checked = check(
                file, world_size=options.world_size, deepspeed=options.deepspeed, given=given, plain=options.plain
            )
        except ValueError as error:
            status, sentence = BAD_USAGE, str(error) if file in str(error) else f"{file}: {error}"
            printed.append({"file": file, "error": sentence})
            print(f"dsfix: {sentence}", file=sys.stderr)
            continue
        if any(finding.level is Level.ERROR for finding in checked.findings):
            status = max(status, TROUBLE)
        states = checked.states()
        if not options.json:
            print("\n" * shown, end="")
            shown = True
            _print(file, checked, states)
            continue
        printed.append(
            {
                "file": file,
                "deepspeed": checked.release,
                "assumed": checked.assumed,
                "findings": [finding.as_json() for finding in checked.findings],
                "patches": {name: {"state": state, "reason": why} for name, (state, why) in states.items()},
            }
        )
    if options.json:
        output.print_json(printed)
    return status


def _print(file: str, checked: CheckResult, states: dict[str, tuple[str, str]]) -> None:
    counts = Counter(finding.level for finding in checked.findings)
    summary = ", ".join(f"{counts[level]} {level.value}{'s' * (counts[level] > 1)}" for level in Level if counts[level])
    print(f"{file}, deepspeed {checked.release}{'' if checked.installed else ' (not installed here)'}: ", end="")
    print(summary or "no problems found")
    for finding in checked.findings:
        print(f"\n{finding.level.value:<8} {finding.where or 'this config'}    [{finding.rule}]")
        _indented(finding.what)
        _indented(f"Remedy: {finding.remedy}")
        for patch_id in finding.patches:
            if patch_id in states:
                _indented(f"Patch {patch_id}: {states[patch_id][0]}")
    if checked.assumed:
        print()
        _indented("Assumed: " + "; ".join(checked.assumed) + ".", 0)


def _indented(text: str, indent: int = 9) -> None:
    print(*output.wrapped(text, " " * indent, " " * (indent + 2)), sep="\n")
