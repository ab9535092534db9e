"""Importing DeepSpeed, and building its operators."""
