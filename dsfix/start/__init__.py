"""What starts with Python where dsfix is switched on from outside: `python -m dsfix run`, `python -m dsfix enable`.

The modules here are loaded under top-level names, from this directory: importing the package dsfix would activate it.
"""

import os

DIRECTORY = os.path.dirname(os.path.abspath(__file__))
