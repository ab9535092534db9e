"""The contract that every patch must keep: cases, inspected processes, modified copies of a release, the checks."""
