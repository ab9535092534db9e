"""The catalogue: one module per bug; a module's name is the patch's id."""
