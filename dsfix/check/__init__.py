"""`check`: a DeepSpeed config against the rules; nothing of DeepSpeed is imported."""
