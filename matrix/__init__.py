"""Evidence for the patches: proofs of version ranges, bystanders, DeepSpeed's parts, other projects' tests."""

import sys
from pathlib import Path

# proofs test the installed dsfix; the checkout's dsfix/ contains no patches
_CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _CHECKOUT]
