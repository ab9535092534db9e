"""Runs once in the process from which ranks are forked, before DeepSpeed is imported."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # matrix takes it off again

from matrix.changed import marks

marks.install(Path(os.environ["DSFIX_MATRIX_OLD"]), Path(os.environ["PYTHONPATH"]))
