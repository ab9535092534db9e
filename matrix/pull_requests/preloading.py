"""A pytest plugin: the ranks of DeepSpeed's tests are forked from a process that has imported torch and DeepSpeed."""

from __future__ import annotations

import multiprocessing

multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", "deepspeed"])
