"""Run once in the process from which ranks are forked, before anything imports dsfix."""

from matrix.bystanders import hits

hits.install()
