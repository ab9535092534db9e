"""`python -m matrix gpu`: a folder that a machine with a GPU and no package index can run, and its results."""
