"""What `python -m dsfix doctor` looks at: one module per part of the environment, and the rules about them.

The modules read paths and the answers of commands; they import neither torch nor DeepSpeed, and no broken part of the
environment makes them raise.
"""
