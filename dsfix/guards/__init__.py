"""What dsfix looks at around `deepspeed.initialize`: one module per guard, loaded at the first call.

A guard module has `before(call)` or `after(call, result)`, or both. It stops a job by raising a GuardError; when it
fails in any other way the job goes on with one warning.
"""

from __future__ import annotations


class GuardError(RuntimeError):
    """A guard stops the job: what is wrong, where, and the remedy."""
