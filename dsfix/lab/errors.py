"""What goes wrong in the lab, as one sentence."""

from __future__ import annotations


class LabUnavailable(Exception):
    """This machine or environment cannot provide what was asked for; the message names what is missing."""
