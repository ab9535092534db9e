"""Tensor parallelism, AutoTP among it."""
