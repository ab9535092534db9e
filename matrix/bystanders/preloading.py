"""Runs once in the process from which ranks are forked: imports what every rank imports."""

import importlib

import dsfix.lab.half  # noqa: F401
from dsfix.lab import accelerator

accelerator.prepare()
importlib.import_module("deepspeed")
