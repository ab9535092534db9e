"""Rules of `check`: one module per family."""
