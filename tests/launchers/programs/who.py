"""A rank that prints whether dsfix is loaded once DeepSpeed is imported, and its devices."""

import os
import sys

import deepspeed

print(f"rank {os.environ.get('RANK')}: {'dsfix' in sys.modules}, devices {os.environ.get('CUDA_VISIBLE_DEVICES')}")
print(f"deepspeed {deepspeed.__version__}")
