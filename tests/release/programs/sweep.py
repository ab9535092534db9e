"""Writes whether dsfix finds every function of the modules named on the command line and knows its code again."""

import ast
import importlib
import json
import sys
import time

import dsfix  # noqa: F401 isort: skip
import deepspeed  # noqa: F401

from dsfix.engine import rewrite, source
from dsfix.engine.rewrite import attribute, functions_beneath
from dsfix.outcome import Refused


def definitions(path):
    """(qualified name, first line, accessor) of every function that is not nested in another, by parsing the file."""
    found = []

    def walk(node, names):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                walk(child, [*names, child.name])
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                accessor = [d.attr for d in child.decorator_list if isinstance(d, ast.Attribute)]
                accessor = {"setter": "fset", "deleter": "fdel"}.get(accessor[-1] if accessor else "", "")
                found.append((".".join([*names, child.name]), first, accessor))
            elif not isinstance(child, ast.expr):
                walk(child, names)

    with open(path, encoding="utf-8") as file:
        walk(ast.parse(file.read()), [])
    return found


def live_lines(module, qualname):
    """First lines of what the imported module really holds under that name, in the module's own file."""
    try:
        *_, raw = attribute(module, qualname)
    except Refused:
        return set()
    return {f.__code__.co_firstlineno for f in functions_beneath(raw) if f.__code__.co_filename == module.__file__}


result = {"functions": 0, "seconds": 0.0, "modules": 0, "absent": [], "wrong": []}
for name in sys.argv[2:]:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # optional dependencies, or a process group that has to be there
        result["absent"].append(f"{name}: {error}")
        continue
    result["modules"] += 1
    found = definitions(module.__file__)
    for qualname in dict.fromkeys(each[0] for each in found):
        for accessor in dict.fromkeys(each[2] for each in found if each[0] == qualname):
            target = f"{qualname}.{accessor}" if accessor else qualname
            began = time.process_time()
            firsts = [block.first for block in source.find_blocks(module.__file__, target)]
            right = [line for other, line, kind in found if other == qualname and accessor in ("", kind)]
            if firsts != right:
                result["wrong"].append(f"{name}:{target} is at {right}, found at {firsts}")
            try:
                _ = rewrite.Site(module, qualname, accessor).source
            except Refused as refused:
                if set(right) & live_lines(module, qualname):
                    result["wrong"].append(f"{name}:{target} {refused.outcome.value}: {refused.reason}")
                else:
                    result["absent"].append(f"{name}:{target}: {refused.reason}")
            except Exception as error:
                result["wrong"].append(f"{name}:{target} {type(error).__name__}: {error}")
            result["functions"] += 1
            result["seconds"] += time.process_time() - began
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(result, out)
