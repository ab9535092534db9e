"""What the contract tests share: cases, processes to look into, changed copies of a release, and the checks."""
