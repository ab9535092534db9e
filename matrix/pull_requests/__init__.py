"""`diff ID --upstream` on a clone of DeepSpeed: does each test fail before its fix, and pass after it?"""
