"""`python -m dsfix audit`: does the installed DeepSpeed, with this config, compute what PyTorch computes?

A plan (plan.py) is trained twice: by DeepSpeed's engine on its ranks (rank.py) and by plain PyTorch in one process over
the same global batches (reference.py). Both write a Record (record.py); compare.py says where they differ by more than
rounding explains. trial.py runs one such comparison in fresh processes.
"""
