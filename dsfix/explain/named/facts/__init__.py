"""One module per library or part of DeepSpeed; each has FACTS."""
