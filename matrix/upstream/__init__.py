"""DeepSpeed's own tests as an oracle: a selection of them, on a release without dsfix and with it."""
