"""Checks around `deepspeed.initialize`: one module per guard, loaded at the first call.

A guard module has `before(call)` or `after(call, result)`, or both. It stops a job by raising GuardError; any other
exception in a guard becomes one warning and the job continues.
"""

from __future__ import annotations


class GuardError(RuntimeError):
    """A guard stops the job; the message states what is wrong, where, and the remedy."""
