"""Runs once in the process from which ranks are forked: imports what every rank of the audit imports."""

import importlib

import dsfix.audit.assemble
import dsfix.audit.observe
import dsfix.audit.saving
import dsfix.lab.kernels  # noqa: F401
from dsfix.lab import accelerator

accelerator.prepare()
importlib.import_module("deepspeed")
