"""A patch's edits in DeepSpeed's own files, with the functions that they call."""

from __future__ import annotations

import ast
import os
import re
import textwrap
from collections.abc import Iterator, Sequence

from dsfix.catalogue.registry import Entry
from dsfix.cli.printing.edits import Unwritable, edited
from dsfix.engine import verdict
from dsfix.engine.source import text_of
from dsfix.patch import Edit
from dsfix.versions import module_file
from matrix.pull_requests.reading import Module, ReadCode, Reader, Symbol, module
from matrix.pull_requests.text import Text
from matrix.pull_requests.writing import Writer

_LINKS = {"deepspeed/ops/op_builder/": "op_builder/", "deepspeed/accelerator/": "accelerator/"}


def changed_files(entry: Entry) -> dict[str, tuple[str, str]]:
    """Path in DeepSpeed's repository -> the text before and after.

    Raises:
        Unwritable: with the reason, after "it cannot be written as a patch of DeepSpeed's source: ".
    """
    edits: dict[str, list[Edit]] = {}
    for change in entry.patch.changes:
        if not isinstance(change, Edit):
            raise Unwritable(f"it sets {change.target} at run time ({type(change).__name__}) instead of editing it")
        if change.module.partition(".")[0] != "deepspeed":
            raise Unwritable(f"it edits {change.module}")
        edits.setdefault(change.module, []).append(change)
    used = {word for name in edits for word in re.findall(r"\w+", text_of(module_file(name) or "") or "")}
    changed = {}
    for name, several in edits.items():
        path, before, after = _changed(several, entry, used)
        changed[_in_repository(path, name)] = before, without_prefix(after, used)
    return changed


def parsed(text: str) -> str:
    """The text. Raises Unwritable if it is not Python."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise Unwritable(f"the result would not be valid Python: {error}") from None
    return text


def _changed(edits: Sequence[Edit], entry: Entry, used: set[str]) -> tuple[str, str, str]:
    """The file that these edits of one module are in, its text before and after."""
    founds = [_read_code(edit, edits, entry) for edit in edits]
    writer = Writer(founds, lambda symbol: _read(symbol, entry), used, private=True)
    path, before, after = edited((edit, _body(writer.text(found), edit)) for edit, found in zip(edits, founds))
    definitions = writer.definitions()
    if definitions:
        first = min(verdict.places(edit)[0].first for edit in edits)
        after = _with_definitions(before, after, first, definitions, writer.imports)
    return path, before, parsed(after)


def _read_code(edit: Edit, edits: Sequence[Edit], entry: Entry) -> ReadCode:
    """What the edit's code refers to, read as the body of a function of the patch's module.

    It may use what another edit of the same function imports.
    """
    imported = [
        ast.unparse(node)
        for other in edits
        if other.target == edit.target
        for node in ast.walk(ast.parse(other.written))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    code = textwrap.dedent(edit.written).strip("\n")
    source = "\n".join([*dict.fromkeys(imported), "def edited():", textwrap.indent(code, "    "), ""])
    of = Module(entry.module.__name__, source)
    return Reader(of, of.name.partition(".")[0]).read(of.definition("edited"))


def _body(function: str, edit: Edit) -> str:
    code = textwrap.dedent(function.partition("\n")[2])
    return code if code.strip("\n") != edit.written.strip("\n") else edit.written


def _read(symbol: Symbol, entry: Entry) -> ReadCode:
    package, _, name = symbol.module.rpartition(".")
    shared = name.startswith("_") and f"{entry.module.__package__}.".startswith(f"{package}.")
    if symbol.name == "PATCH" or not (shared or symbol.module == entry.module.__name__):
        raise Unwritable(f"its code uses {symbol.name} of {symbol.module}, which DeepSpeed does not have")
    of = module(symbol.module)
    return Reader(of, of.name.partition(".")[0]).read(of.definition(symbol.name))


def _with_definitions(before: str, after: str, first: int, definitions: Sequence[str], imports: Sequence[str]) -> str:
    """The text with the definitions in front of the function or class that has the first edited line."""
    text = Text(before)
    place = next(start for start, end in map(text.lines, text.tree.body) if start <= text.begins[first - 1] < end)
    below = after[len(text.between(0, place)) :]
    known = dict(_origins(text.tree.body))
    written = [_without_known_imports(each, known) for each in definitions]
    missing = [line for line in imports if not {*_origins(ast.parse(line).body)} <= {*known.items()}]
    if any(name in known for line in missing for name, _ in _origins(ast.parse(line).body)):
        raise Unwritable(f"the file uses a name of `{missing[0]}` for something else")
    own = [text.lines(each)[0] for each in text.tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    at = min([place, *own])
    head = text.between(0, at) + "".join(f"{line}\n" for line in missing) + text.between(at, place)
    return head + "\n\n".join(f"{each.rstrip()}\n" for each in written) + "\n\n" + below


def _origins(body: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """The names that these statements import, and what each is."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                yield name, alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _without_known_imports(source: str, known: dict[str, str]) -> str:
    """The definition without imports in its functions of what the file imports already."""
    text = Text(source)
    gone = []
    for node in ast.walk(text.tree):
        names = {*_origins([node])}
        if names and names <= {*known.items()} and isinstance(node, ast.stmt):
            start, end = text.lines(node)
            gone.append((start, end + (text.bytes[end : end + 1] == b"\n"), ""))
    return text.changed(gone)


def without_prefix(text: str, used: set[str]) -> str:
    """Attributes that the patch keeps on DeepSpeed's objects, without dsfix in their names."""

    def renamed(match: re.Match[str]) -> str:
        return f"_{match[1]}" if f"_{match[1]}" not in used else f"_own_{match[1]}"

    text = re.sub(r"\b_dsfix_(\w+)", renamed, text)
    found = re.search(r".*dsfix.*", text, re.IGNORECASE)
    if found:
        raise Unwritable(f"it names dsfix: {found[0].strip()}")
    return text


def _in_repository(path: str, name: str) -> str:
    """The path of a file in DeepSpeed's repository, where parts of the package are links to other directories."""
    root = os.path.dirname(os.path.dirname(module_file(name.partition(".")[0]) or ""))
    real = os.path.relpath(os.path.realpath(path), os.path.realpath(root)).replace(os.sep, "/")
    for linked, target in _LINKS.items():
        if real.startswith(linked):
            return target + real[len(linked) :]
    return real
