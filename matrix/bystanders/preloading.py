"""Runs once in the process from which ranks are forked: imports what every rank imports."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import matrix  # noqa: F401 isort: skip  for the ranks; takes the checkout, whose dsfix/ has no patches, off sys.path again

import dsfix.patches._half  # noqa: F401

from dsfix.lab import accelerator

accelerator.prepare()
importlib.import_module("deepspeed")
