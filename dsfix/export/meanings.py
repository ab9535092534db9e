"""The modules of dsfix as text, and what names in them can mean for a reader of another file."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from ..engine.source import text_of
from ..versions import module_file
from .plain import without_annotations
from .text import Inexportable, Text

LAB = "dsfix.lab.session"  # the module of the class Lab, whose instance a reproduction gets as `lab`
LAB_MODULES = {"models": "dsfix.lab.models", "reference": "dsfix.lab.reference"}
LAB_METHODS = ("initialize", "parameters")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Symbol:
    """Something that a module of dsfix defines; `name` is "Lab.initialize" for a method of the lab."""

    module: str
    name: str


@dataclass(frozen=True)
class Written:
    """`text` takes its place, and needs `imports`. module: whether it is one, so that a variable is an alias of it."""

    text: str
    imports: tuple[str, ...] = ()
    module: bool = False


@dataclass(frozen=True)
class OfModule:
    name: str


class TheLab: ...


class _Skip: ...


THE_LAB, SKIP = TheLab(), _Skip()
Meaning = Union[Symbol, Written, OfModule, TheLab, _Skip, None]

TORCH = Written("torch", ("import torch",), module=True)
DIST = Written("dist", ("import deepspeed.comm as dist",), module=True)
ACCELERATOR = "from deepspeed.accelerator import get_accelerator"
TMP = Written("tmp_path")
OF_LAB: Mapping[str, Written] = {
    "torch": TORCH,
    "deepspeed": Written("deepspeed", ("import deepspeed",), module=True),
    "device": Written("get_accelerator().current_device_name()", (ACCELERATOR,)),
    "rank": Written("dist.get_rank()", DIST.imports),
    "world_size": Written("dist.get_world_size()", DIST.imports),
    "tmp": TMP,
}
_EMULATED = "it needs the emulated device, which decides when the work on a stream is done; on a GPU that is chance"
MISSING = {"emulated": _EMULATED, "late_streams": _EMULATED}
VOCABULARY: Mapping[str, Meaning] = {"BugPresent": Written("AssertionError"), "CannotTell": SKIP}
OLDER = ("require_universal_zero3", "load_whole_files")  # of _checkpoints: they are about older releases


class Module:
    """A module of dsfix: what it defines and imports, without annotations."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.text = name, Text(without_annotations(source))
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, ast.stmt] = {}
        for node in self.text.tree.body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                self.definitions.update(dict.fromkeys(_stored(node), node))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports.update(dict.fromkeys(bound(node), node))

    def definition(self, name: str) -> ast.stmt:
        """The statement that defines the name, or the method of a class."""
        outer, _, inner = name.partition(".")
        node = self.definitions[outer]
        if inner and isinstance(node, ast.ClassDef):
            return next(each for each in node.body if isinstance(each, FUNCTIONS) and each.name == inner)
        return node


@functools.lru_cache(maxsize=64)
def module(name: str) -> Module:
    source = text_of(module_file(name) or "")
    if source is None:
        raise Inexportable(f"the source of {name} cannot be read")
    return Module(name, source)


def bound(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.asname or alias.name.partition(".")[0] for alias in node.names]


def _stored(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
