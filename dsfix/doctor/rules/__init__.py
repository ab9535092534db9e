"""Rules of `doctor`: one module per family."""
