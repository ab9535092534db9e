"""A patch as a pull request: the edits in DeepSpeed's own files, and a unit test made from the reproduction.

`text.py` has the places of syntax trees in source text, `edits.py` the edits there, `plain.py` removes annotations;
`reading.py` finds what a piece of code refers to (`meanings.py`), `writing.py` writes it for another file;
`source_patch.py` and `unit_test.py` use them.
"""
