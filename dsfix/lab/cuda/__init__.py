"""An emulated CUDA device for machines without a GPU: "cuda" tensors in host memory that do not mix with CPU tensors.

`load()` takes over the CUDA dispatch key of any build of torch (Linux x86-64; run with 2.3 to 2.15) and replaces
torch.cuda's Python functions. Tensors are on ``cuda:N``, autograd and collectives (gloo) work, and an operator called
with tensors on two devices raises the same error as on a GPU.

Without a schedule every operator and collective is synchronous, and streams and events order nothing;
docs/emulated-device.md describes the schedules (`DSFIX_LAB_SCHEDULE`).

Limitations:
- kernels, and hence rounding and random numbers, are those of the CPU; host and devices share one generator;
- no NCCL, no CUDA graphs, no Triton or other compiled CUDA kernels, no torch.compile, no float16 speed or limits;
- memory is counted but never runs out; the caching allocator's reserved memory equals the allocated memory;
- a `_foreach_` operator that returns new tensors for lists partly on the CPU returns all of them on the device;
- operators outside ``aten`` (custom ones) are not checked for mixed devices.
"""

from dsfix.lab.cuda.load import follow, load, loaded

__all__ = ["follow", "load", "loaded"]
