"""Rules of `check`: one module per family, each with a tuple `RULES`."""
