"""The signatures of known problems: one module per family, each with a tuple `SIGNATURES`."""
