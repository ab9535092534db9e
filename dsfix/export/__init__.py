"""A patch as a pull request: the edits in DeepSpeed's own files, and a unit test made from the reproduction.

`text.py` has the positions of syntax trees in source text, `plain.py` removes annotations, `reading.py` finds what a
piece of code refers to, `writing.py` writes it for another file; `source_patch.py` and `unit_test.py` use them.
"""
