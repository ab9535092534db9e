"""Errors of the lab."""

from __future__ import annotations


class LabUnavailable(Exception):
    """This machine or environment lacks something; the message names it in one sentence."""
