"""Exit statuses, and the exception that carries one."""

from __future__ import annotations

OK, TROUBLE, BAD_USAGE, NO_DEEPSPEED, NO_ANSWER, INTERRUPTED = 0, 1, 2, 3, 4, 130
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # of `run`, as in a shell

STATUSES = {
    OK: "done",
    TROUBLE: "a patch is in trouble (drifted, conflict, failed); verify: a bug is not fixed, or a run gave no "
    "answer; check, doctor: an error was found; audit: DeepSpeed differs from PyTorch, or nothing could be compared; "
    "status: the file that should enable dsfix has no effect; disable: another file still enables it",
    BAD_USAGE: "the command line or a file it names is wrong",
    NO_DEEPSPEED: "DeepSpeed is not installed or incomplete; audit: torch is missing",
    NO_ANSWER: "verify: nothing is wrong, but not everything could be tested here; explain, find: nothing known "
    "matches; list --upstream: the installed release is not in the table",
    NOT_EXECUTABLE: "run: the command cannot be executed",
    NOT_FOUND: "run: the command was not found",
    INTERRUPTED: "interrupted",
}


class CommandError(Exception):
    """One sentence for the user, and the exit status that goes with it."""

    def __init__(self, sentence: str, status: int = BAD_USAGE) -> None:
        super().__init__(sentence)
        self.status = status
