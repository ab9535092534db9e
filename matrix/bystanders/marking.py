"""Runs once in the process from which ranks are forked, before dsfix is imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # matrix removes it again

from matrix.bystanders import hits

hits.install()
