"""What logs show of known faults: one module per family, each with a tuple `SIGNATURES`."""
