"""`check`: checks a DeepSpeed config against the rules without importing DeepSpeed."""
