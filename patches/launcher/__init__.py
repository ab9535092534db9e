"""Launching jobs: `deepspeed`, and its autotuner."""
