"""Tools for reproductions: a device, ranks, tiny models, a reference. Importing this package does not import torch.

A script that runs on a GPU or, without one, on the emulated CUDA device starts with

    from dsfix.lab import use_cuda
    use_cuda()

before it imports torch.
"""

from dsfix.lab.accelerator import use_cuda
from dsfix.lab.distributions import LabUnavailable
from dsfix.lab.ranks import RankResult, launch
from dsfix.lab.session import Lab

__all__ = ["Lab", "LabUnavailable", "RankResult", "launch", "use_cuda"]
