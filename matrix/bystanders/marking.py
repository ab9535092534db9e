"""Runs once in the process from which ranks are forked, before dsfix is imported."""

from matrix.bystanders import hits

hits.install()
