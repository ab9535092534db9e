"""Rules of `doctor`: one module per family, each with a tuple `RULES`. `find` takes `dsfix.doctor.facts.Facts`."""
