"""Shared code of reproductions about the `deepspeed` launcher: its process starts nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any
from unittest import mock


def command(arguments: Sequence[str]) -> list[str]:
    """The command that `deepspeed ARGUMENTS` would start. Whatever program a backend needs is there."""
    from deepspeed.launcher import runner

    popen = mock.patch.object(runner.subprocess, "Popen")
    others = mock.patch.object(runner.signal, "signal"), mock.patch("shutil.which", lambda name: name)
    with popen as start, others[0], others[1]:
        start.return_value.returncode = 0
        runner.main(list(arguments))
    words: list[str] = start.call_args.args[0]
    return words


def started(arguments: Sequence[str]) -> dict[str, list[int]]:
    """host -> devices on which `deepspeed ARGUMENTS` would start ranks."""
    (world,) = (word for word in command(arguments) if word.startswith("--world_info="))
    hosts: dict[str, Any] = json.loads(base64.urlsafe_b64decode(world.partition("=")[2]))
    return hosts
