"""The audit over the space of configs: a pairwise covering array, run on a release without and with dsfix."""
