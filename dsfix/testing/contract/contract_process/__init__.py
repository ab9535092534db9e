"""What runs in the processes that are looked into.

It is loaded there as a package of its own, from the directory above: as a part of dsfix it would import dsfix first.
"""
