"""Records which changed statements of DeepSpeed a process runs: a finder instruments each module as it is loaded.

They are recorded where `matrix.bystanders.hits` records a patch's: file -> lines.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from matrix.bystanders import hits
from matrix.changed import functions


def install(old: Path, new: Path) -> None:
    """Instrument the new release's modules that are loaded from now on."""
    setattr(builtins, hits.MARK, hits.mark)

    class Loader(hits.Loader):
        def marked(self, text: bytes) -> ast.Module:
            place = str(Path(self.path).relative_to(new))
            hits.run.setdefault(place, set())
            lines = {line for each in functions.of_file(place, old, new) for line in {each.entry, *each.lines}}
            return marked(text, place, lines)

    sys.meta_path.insert(0, hits.Finder(lambda name: name.partition(".")[0] == functions.PACKAGE, Loader))


def marked(text: bytes, place: str, lines: Collection[int]) -> ast.Module:
    """The module with a mark before each statement on these lines; that of a function or class is its first statement.

    Code that is compiled for a device has none.
    """

    def call(line: int) -> list[ast.stmt]:
        arguments: list[ast.expr] = [ast.Constant(place), ast.Constant(line)]
        return [ast.Expr(ast.Call(ast.Name(hits.MARK, ast.Load()), arguments, []))] if line in lines else []

    def mark(block: list[Any]) -> None:
        for node in block.copy():
            compiled = "jit" in "".join(map(ast.unparse, getattr(node, "decorator_list", ())))
            if compiled or functions.is_docstring(node):
                continue
            for name in functions.BLOCKS:
                mark(getattr(node, name, []))
            if isinstance(node, (*functions.SCOPES, ast.ExceptHandler)):
                first = int(functions.is_docstring(node.body[0]))
                node.body[first:first] = call(node.lineno)
            else:
                at = block.index(node)
                block[at:at] = call(getattr(node, "lineno", 0))

    tree = ast.parse(text)
    mark(tree.body)
    return ast.fix_missing_locations(tree)
