"""The code that runs in the inspected processes.

They load it as a top-level package from the directory above, because importing it as part of dsfix imports dsfix first.
"""
