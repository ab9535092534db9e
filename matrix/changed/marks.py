"""Records which changed statements of DeepSpeed a process runs: a finder instruments each module as it is loaded.

They are recorded where `matrix.bystanders.hits` records a patch's: file -> lines.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

from matrix.bystanders import hits
from matrix.changed import functions


def install(old: Path, new: Path) -> None:
    """Instrument the new release's modules that are loaded from now on."""
    setattr(builtins, hits.MARK, hits.mark)
    sys.meta_path.insert(0, _Finder(old, new))


class _Finder:
    def __init__(self, old: Path, new: Path) -> None:
        self._old, self._new = old, new

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != functions.PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path, self._old, self._new)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, old: Path, new: Path) -> None:
        super().__init__(name, path)
        self._old, self._new = old, new

    def get_code(self, fullname: str) -> Any:  # never from the bytecode cache
        place = str(Path(self.path).relative_to(self._new))
        hits.run.setdefault(place, set())
        changes = functions.of_file(place, self._old, self._new)
        lines = {line for each in changes for line in {each.entry, *each.lines}}
        return compile(marked(self.get_data(self.path), place, lines), self.path, "exec", dont_inherit=True)


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
