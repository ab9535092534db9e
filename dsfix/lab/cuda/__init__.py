"""An emulated CUDA device for machines without a GPU: "cuda" tensors in host memory that do not mix with CPU tensors.

`load()` takes over the CUDA dispatch key of a torch 2.13 built without CUDA (Linux x86-64) and answers torch.cuda's
Python functions. Tensors are on ``cuda:N``, autograd and collectives (gloo) work, and an operator that is given tensors
of two devices raises what it raises on a GPU. A collective has finished when it returns.

What it does not show:
- streams and events order nothing: every operator has finished when it returns, so races are invisible;
- the kernels, and so the rounding and the random numbers, are the CPU's, and host and devices share one generator;
- no NCCL, no CUDA graphs, no Triton or other compiled CUDA kernels, no torch.compile, no float16 speed or limits;
- memory is only counted, never short; the caching allocator's reserved memory equals the allocated memory;
- a `_foreach_` operator that returns new tensors for lists of which some are on the CPU returns them all on the device;
- operators outside ``aten`` (custom ones) are not checked for mixed devices.
"""

from dsfix.lab.cuda.load import load, loaded

__all__ = ["load", "loaded"]
