"""`python -m dsfix audit`: does the installed DeepSpeed compute the same as PyTorch with this config?

A plan (plan.py) is trained twice: by DeepSpeed's engine on its ranks (rank.py) and by plain PyTorch in one process on
the same global batches (reference.py). Both write a Record (pieces.py); compare.py finds where they differ by more than
rounding. trial.py runs one such comparison in fresh processes.
"""
