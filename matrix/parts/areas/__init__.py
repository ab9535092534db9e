"""The parts, one file for each area."""
