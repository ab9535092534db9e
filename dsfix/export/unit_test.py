"""A unit test in the form of DeepSpeed's, made from a patch's reproduction; nothing of dsfix is left in it."""

from __future__ import annotations

import ast
import os
import re
import textwrap
from collections.abc import Iterator

from ..catalogue.registry import Entry
from ..versions import module_file
from .meanings import ACCELERATOR, LAB, Symbol, module
from .reading import ReadCode, Reader
from .source_patch import without_prefix
from .text import Change, Inexportable, Text
from .writing import Writer

_HEADER = """\
# Copyright (c) DeepSpeed Team.
# SPDX-License-Identifier: Apache-2.0

# DeepSpeed Team
"""
_COMMON = "from unit.common import DistributedTest"
_NEEDS = {
    r'"fp16": \{"enabled": True|torch\.float16': ("not get_accelerator().is_fp16_supported()", "fp16 is not supported"),
    r'"bf16": \{"enabled": True|torch\.bfloat16': (
        "not get_accelerator().is_bf16_supported()",
        "bf16 is not supported",
    ),
    r"torch\.cuda\.": ('get_accelerator().device_name() != "cuda"', "needs CUDA"),
}
#: package of DeepSpeed -> directory of its tests, where they differ
_DIRECTORIES = {"runtime/fp16": "runtime/half_precision", "ops/op_builder": "ops"}


def test_file(entry: Entry) -> str:
    """Its path in DeepSpeed's repository: the directory of the tests of the first module that the patch changes."""
    package = entry.patch.modules[0].split(".")[1:-1]
    below = "/".join(package)
    below = _DIRECTORIES.get(below, below)
    root = os.path.dirname(os.path.dirname(module_file("deepspeed") or ""))
    if os.path.isdir(os.path.join(root, "tests", "unit")):
        while below and not os.path.isdir(os.path.join(root, "tests", "unit", below)):
            below = below.rpartition("/")[0]
    return "/".join(filter(None, ["tests/unit", below, f"test_{_identifier(entry)}.py"]))


def unit_test(entry: Entry) -> str:
    """The text of the test.

    Raises:
        Inexportable: with the reason, after "its reproduction cannot be written as a test of DeepSpeed's: ".
    """
    if not hasattr(entry.module, "reproduce"):
        raise Inexportable("its file has no reproduce(lab)")
    found = _read(Symbol(entry.module.__name__, "reproduce"), entry)
    writer = Writer([found], lambda symbol: _read(symbol, entry), taken=("DistributedTest", "PATCH"))
    body = _body(writer.text(found))
    definitions = writer.definitions()
    everything = "\n".join([body, *definitions])
    needs = [told for pattern, told in _NEEDS.items() if re.search(pattern, everything)]
    imports = {*writer.imports(), _COMMON, *(["import pytest", ACCELERATOR] if needs else [])}
    directory = ", tmp_path" if writer.needs_tmp(found) else ""
    written = [
        _HEADER,
        _sorted(imports),
        *_spaced(definitions),
        f"\n\nclass Test{_class_name(entry)}(DistributedTest):\n",
        textwrap.indent(_docstring(entry, [reason for _, reason in needs]), "    "),
        f"    world_size = {entry.patch.ranks}\n\n    def test(self{directory}):\n",
        *(f'        if {unless}:\n            pytest.skip("{reason}")\n' for unless, reason in needs),
        textwrap.indent(body, "        "),
    ]
    text = without_prefix("".join(written), set())
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise Inexportable(f"the result would not be valid Python: {error}") from None
    return text


def _read(symbol: Symbol, entry: Entry) -> ReadCode:
    own = entry.module.__name__
    of = module(symbol.module)
    if symbol.module == LAB and symbol.name in ("_DEFAULTS", "_BUCKETS", "Lab.initialize", "Lab.parameters"):
        lab = "self"
    elif symbol.module == own or _is_shared(symbol.module):
        lab = "lab"
    else:
        raise Inexportable(f"it uses {symbol.name} of {symbol.module}")
    if symbol == Symbol(own, "PATCH"):
        raise Inexportable("it reads its own declaration")
    return Reader(of, {"PATCH": entry.patch}, own.partition(".")[0]).read(of.definition(symbol.name), lab)


def _is_shared(name: str) -> bool:
    """Whether it is a module of the lab, or one that reproductions share."""
    if name.startswith("dsfix.lab."):
        return name not in (LAB, *_NOT_LAB)
    return name.startswith("dsfix.patches.") and name.rpartition(".")[2].startswith("_")


_OTHERS = ("deepspeed", "numpy", "packaging", "pytest", "torch", "unit")  # packages that are not Python's own
_NOT_LAB = ("dsfix.lab.accelerator", "dsfix.lab.cuda_device", "dsfix.lab.ranks", "dsfix.lab.isolation")


def _body(function: str) -> str:
    """The statements of the reproduction; what it would return is only computed."""
    text = Text(function)
    [node] = text.tree.body
    assert isinstance(node, ast.FunctionDef)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    changes = [change for each in _returns(body) for change in _without_value(text, each, each is body[-1])]
    return textwrap.dedent(text.changed(changes, (text.lines(body[0])[0], len(text.bytes)))).strip("\n") + "\n"


def _without_value(text: Text, node: ast.Return, last: bool) -> Iterator[Change]:
    if isinstance(node.value, ast.Call):
        yield text.start(node), text.start(node.value), ""
        if not last:
            yield text.end(node), text.end(node), f"\n{' ' * node.col_offset}return"
    elif last:
        yield (*text.lines(node), "")
    else:
        yield text.start(node), text.end(node), "return"


def _returns(body: list[ast.stmt]) -> Iterator[ast.Return]:
    for node in body:
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            for name in ("body", "orelse", "finalbody", "handlers"):
                yield from _returns(getattr(node, name, []))


def _sorted(imports: set[str]) -> str:
    """Imports as upstream's tests have them: the standard library and torch first, their own last."""
    parts: dict[bool | None, list[str]] = {None: [], False: [], True: []}
    whole = {line for line in imports if line.startswith("import")}
    by_module: dict[str, list[str]] = {}
    for line in sorted(imports - whole):
        start, _, name = line.partition(" import ")
        by_module.setdefault(start, []).append(name)
    for line in [*sorted(whole), *(f"{start} import {', '.join(names)}" for start, names in by_module.items())]:
        top = line.split()[1].partition(".")[0]
        parts[top in ("deepspeed", "unit") if top in _OTHERS else None].append(line)
    return "".join(f"\n{chr(10).join(part)}\n" for part in parts.values() if part)


def _spaced(definitions: list[str]) -> Iterator[str]:
    """Two lines between functions and classes, one line around constants."""
    before = False
    for text in definitions:
        big = bool(re.match(r"\s*(?:@|def |class |async )", text))
        yield ("\n\n" if big or before else "\n") + text.strip("\n") + "\n"
        before = big


def _docstring(entry: Entry, needs: list[str]) -> str:
    lines = textwrap.wrap(f"{entry.patch.title}.", 100)
    links = [link for link, what in entry.patch.upstream.items() if what.startswith("reported")]
    more = [f"Skipped where {reason}." for reason in needs] + [f"Reported in {link}" for link in links]
    inside = "\n".join([*lines, "", *more, ""]) if more or len(lines) > 1 else lines[0]
    return f'"""{inside}"""\n'


def _identifier(entry: Entry) -> str:
    return re.sub(r"\W", "_", entry.id.rpartition(":")[2])


def _class_name(entry: Entry) -> str:
    return "".join(part[:1].upper() + part[1:] for part in _identifier(entry).split("_"))
