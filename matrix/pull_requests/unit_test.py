"""A unit test in the form of DeepSpeed's, made from a patch's reproduction; nothing of dsfix is left in it."""

from __future__ import annotations

import ast
import os
import re
import textwrap
from collections.abc import Iterator, Sequence

from dsfix.catalogue.registry import Entry
from dsfix.cli.printing.edits import Unwritable
from dsfix.versions import module_file
from matrix.pull_requests.fix import parsed, without_prefix
from matrix.pull_requests.reading import ACCELERATOR, FUNCTIONS, LAB, ReadCode, Reader, Symbol, module
from matrix.pull_requests.text import Change, Text
from matrix.pull_requests.writing import Writer

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
_DIRECTORIES = {"runtime/fp16": "runtime/half_precision", "ops/op_builder": "ops"}  # of a package's tests, if others
_OF_LAB = ("_DEFAULTS", "_BUCKETS", "Lab.initialize", "Lab.parameters")
_NOT_LAB = (LAB, "dsfix.lab.accelerator", "dsfix.lab.cuda_device", "dsfix.lab.ranks", "dsfix.lab.isolation")
_OTHERS = ("deepspeed", "numpy", "packaging", "pytest", "torch", "unit")  # packages that are not Python's own


def test_file(entry: Entry) -> str:
    """Its path in DeepSpeed's repository: the directory of the tests of the first module that the patch changes."""
    below = "/".join(entry.patch.modules[0].split(".")[1:-1])
    below = _DIRECTORIES.get(below, below)
    tests = os.path.join(os.path.dirname(os.path.dirname(module_file("deepspeed") or "")), "tests", "unit")
    while below and os.path.isdir(tests) and not os.path.isdir(os.path.join(tests, below)):
        below = below.rpartition("/")[0]
    return "/".join(filter(None, ["tests/unit", below, f"test_{_identifier(entry)}.py"]))


def unit_test(entry: Entry) -> str:
    """The text of the test.

    Raises:
        Unwritable: with the reason, after "its reproduction cannot be one of DeepSpeed's: ".
    """
    if not hasattr(entry.module, "reproduce"):
        raise Unwritable("its file has no reproduce(lab)")
    found = _read(Symbol(entry.module.__name__, "reproduce"), entry)
    writer = Writer([found], lambda symbol: _read(symbol, entry), taken=("DistributedTest", "PATCH"))
    body = _body(writer.text(found))
    definitions = writer.definitions()
    everything = "\n".join([body, *definitions])
    needs = [told for pattern, told in _NEEDS.items() if re.search(pattern, everything)]
    imports = {*writer.imports, _COMMON, *(["import pytest", ACCELERATOR] if needs else [])}
    directory = ", tmp_path" if writer.needs_tmp(found) else ""
    name = "".join(part[:1].upper() + part[1:] for part in _identifier(entry).split("_"))
    written = [
        _HEADER,
        _sorted(imports),
        *_spaced(definitions),
        f"\n\nclass Test{name}(DistributedTest):\n",
        textwrap.indent(_docstring(entry, [reason for _, reason in needs]), "    "),
        f"    world_size = {entry.patch.ranks}\n\n    def test(self{directory}):\n",
        *(f'        if {unless}:\n            pytest.skip("{reason}")\n' for unless, reason in needs),
        textwrap.indent(body, "        "),
    ]
    return parsed(without_prefix("".join(written), set()))


def _read(symbol: Symbol, entry: Entry) -> ReadCode:
    own, name = entry.module.__name__, symbol.module.rpartition(".")[2]
    of_lab = symbol.module == LAB and symbol.name in _OF_LAB
    shared = symbol.module.startswith("dsfix.patches.") and name.startswith("_")
    lab = symbol.module.startswith("dsfix.lab.") and symbol.module not in _NOT_LAB
    if not (of_lab or shared or lab or symbol.module == own):
        raise Unwritable(f"it uses {symbol.name} of {symbol.module}")
    if symbol == Symbol(own, "PATCH"):
        raise Unwritable("it reads its own declaration")
    of = module(symbol.module)
    reader = Reader(of, own.partition(".")[0], entry.patch)
    return reader.read(of.definition(symbol.name), "self" if of_lab else "lab")


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


def _returns(body: Sequence[ast.AST]) -> Iterator[ast.Return]:
    for node in body:
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _returns([*ast.iter_child_nodes(node)])


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
