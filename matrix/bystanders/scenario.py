"""What a scenario is: a training script, as people write them, for DeepSpeed's engine and for plain PyTorch alike."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix.bystanders.job import Job

Levels = Mapping[str, str]


@dataclass(frozen=True)
class Scenario:
    """One function of a module in scenarios/; its name is the scenario's.

    title: what the script does, one line. only: factor -> the levels that it makes sense with, all where it is not
    named. pinned: settings that are run besides those that the space deals out, as differences from the plain one.
    reference: whether plain PyTorch says what is right; else the jobs with and without dsfix have to agree.
    """

    title: str
    run: Callable[[Job], None]
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pinned: Sequence[Levels] = ()
    reference: bool = True

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def family(self) -> str:
        return self.run.__module__.rpartition(".")[2]

    def fingerprint(self) -> str:
        """Of the code of its module without imports, comments, docstrings and titles."""
        module = importlib.import_module(self.run.__module__)
        tree = _Bare().visit(ast.parse(inspect.getsource(module)))
        return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


class _Bare(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return None
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "scenario":
            del node.args[0]
        return self.generic_visit(node)


_known: dict[str, Scenario] = {}


def scenario(
    title: str, *, pinned: Sequence[Levels] = (), reference: bool = True, **only: Sequence[str]
) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:
    """Register the function below; `only` are factors of the space, with "_" for a space."""

    def register(run: Callable[[Job], None]) -> Callable[[Job], None]:
        if run.__name__ in _known:
            raise ValueError(f"there are two scenarios {run.__name__}")
        _known[run.__name__] = Scenario(title, run, only, pinned, reference)
        return run

    return register


@functools.cache
def load() -> Mapping[str, Scenario]:
    """All scenarios by name. Imports no torch."""
    package = importlib.import_module("matrix.bystanders.scenarios")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_known.items()))
