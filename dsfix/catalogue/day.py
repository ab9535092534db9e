"""Written by `python -m matrix docs`."""

PROVEN_ON = "2026-12-01"  # the day of the latest run of a reproduction in the record
