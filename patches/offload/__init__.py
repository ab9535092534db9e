"""Optimizer states and parameters on the CPU: ZeRO-Offload, Twin-Flow."""
