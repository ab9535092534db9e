"""The public parts of DeepSpeed, each compared with its reference on generated input, without dsfix and with it."""
