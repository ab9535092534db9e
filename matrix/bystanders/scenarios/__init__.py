"""The scenarios, one module per family; discovered automatically."""
