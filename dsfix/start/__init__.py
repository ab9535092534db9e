"""Modules that Python loads at start-up after `python -m dsfix enable` or under `python -m dsfix run`.

They are loaded from this directory under top-level names, because importing the package dsfix would activate it.
"""

import os

DIRECTORY = os.path.dirname(os.path.abspath(__file__))
