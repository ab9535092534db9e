"""Writes whether dsfix finds every function of the modules named on the command line and reproduces its code."""

import ast
import importlib
import inspect
import json
import sys
import time

import dsfix  # noqa: F401 isort: skip
import deepspeed  # noqa: F401

from dsfix.engine import attributes, rewrite, source
from dsfix.outcome import ChangeRefused


def definitions(path):
    """(qualified name, first line) of every function that is not nested in another, by parsing the file."""
    results = []

    def walk(node, names):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                walk(child, [*names, child.name])
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                results.append((".".join([*names, child.name]), first))
            elif not isinstance(child, ast.expr):
                walk(child, names)

    with open(path, encoding="utf-8") as file:
        walk(ast.parse(file.read()), [])
    return results


def live_lines(module, qualname):
    """First lines of the functions that the imported module contains under that name, in its own file."""
    try:
        *_, raw = attributes.raw_attribute(module, qualname)
    except ChangeRefused:
        return set()
    accessors = [f for f in (getattr(raw, name, None) for name in ("fget", "fset", "fdel")) if f is not None]
    codes = {getattr(f, "__code__", None) for f in (*accessors, inspect.unwrap(getattr(raw, "__func__", raw)))}
    return {code.co_firstlineno for code in codes - {None} if code.co_filename == module.__file__}


def knows_again(module, qualname):
    """Raises ChangeRefused if the function in memory does not match its file."""
    code = rewrite.find_function(module, qualname).__code__
    rewrite.imports_of(source.block_at(code.co_filename, code.co_firstlineno), qualname, code)


result = {"functions": 0, "seconds": 0.0, "modules": 0, "absent": [], "wrong": []}
for name in sys.argv[2:]:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # optional dependencies, or a required process group
        result["absent"].append(f"{name}: {error}")
        continue
    result["modules"] += 1
    found = definitions(module.__file__)
    for qualname in dict.fromkeys(each for each, _ in found):
        began = time.process_time()
        firsts = [block.first for block in source.find_blocks(module.__file__, qualname)]
        right = [line for other, line in found if other == qualname]
        if firsts != right:
            result["wrong"].append(f"{name}:{qualname} is at {right}, found at {firsts}")
        try:
            knows_again(module, qualname)
        except ChangeRefused as refused:
            if set(right) & live_lines(module, qualname):
                result["wrong"].append(f"{name}:{qualname} {refused.outcome.value}: {refused.reason}")
            else:
                result["absent"].append(f"{name}:{qualname}: {refused.reason}")
        except Exception as error:
            result["wrong"].append(f"{name}:{qualname} {type(error).__name__}: {error}")
        result["functions"] += 1
        result["seconds"] += time.process_time() - began
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(result, out)
