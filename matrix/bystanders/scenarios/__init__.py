"""The scenarios: a module per family, found by themselves."""
