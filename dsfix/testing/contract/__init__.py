"""What every patch has to stand: cases, processes to look into, changed copies of a release, and the checks."""
