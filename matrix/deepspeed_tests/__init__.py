"""DeepSpeed's own tests as an oracle: a selection of them, run on a release without and with dsfix."""
