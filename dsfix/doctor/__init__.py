"""`python -m dsfix doctor`: one module per part of the environment, and the rules about them.

The modules read files and the output of commands; they import neither torch nor DeepSpeed, and never raise because a
part of the environment is broken.
"""
