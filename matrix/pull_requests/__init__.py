"""A patch as a pull request for DeepSpeed: the edits in its own files, and a unit test made from the reproduction.

`text.py` has the places of syntax trees in source text; `reading.py` finds what a piece of code refers to, `writing.py`
writes it for another file; `fix.py` and `unit_test.py` use them. `tree.py` tries the result in a clone of DeepSpeed.
"""
