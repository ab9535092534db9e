"""`python -m matrix.framework_tests`: the frameworks' own DeepSpeed tests, without and with dsfix."""
