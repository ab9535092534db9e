"""What changed between two releases: functions, the jobs that reach them, and their results."""
