"""What a reproduction needs: a device, ranks, tiny models, a reference. Importing this imports no torch.

A script that shall run on a GPU or, where there is none, on the emulated CUDA device starts with

    from dsfix.lab import use_cuda
    use_cuda()

before it imports torch.
"""

from dsfix.lab.cuda_device import use_cuda
from dsfix.lab.errors import LabUnavailable
from dsfix.lab.launcher import RankResult, launch
from dsfix.lab.session import Lab

__all__ = ["Lab", "LabUnavailable", "RankResult", "launch", "use_cuda"]
