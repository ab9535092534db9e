"""The rules of `doctor`: one family per module, each with a tuple `RULES`. `find` gets `dsfix.doctor.facts.Facts`."""
