"""A patch's edits in DeepSpeed's own files, with the functions that they call."""

from __future__ import annotations

import ast
import os
import re
import textwrap
from collections.abc import Iterator, Sequence

from ..catalogue.registry import Entry
from ..engine.source import text_of
from ..patch import Edit
from ..versions import module_file
from .edits import Located, edited, located
from .meanings import Module, Symbol, module
from .reading import ReadCode, Reader
from .text import Inexportable, Text
from .writing import Writer

_LINKS = {"deepspeed/ops/op_builder/": "op_builder/", "deepspeed/accelerator/": "accelerator/"}


def changed_files(entry: Entry) -> dict[str, tuple[str, str]]:
    """Path in DeepSpeed's repository -> the text before and after.

    Raises:
        Inexportable: with the reason, after "it cannot be written as a patch of DeepSpeed's source: ".
    """
    edits: list[Edit] = []
    for change in entry.patch.changes:
        if not isinstance(change, Edit):
            raise Inexportable(f"it sets {change.target} at run time ({type(change).__name__}) instead of editing it")
        if change.module.partition(".")[0] != "deepspeed":
            raise Inexportable(f"it edits {change.module}")
        edits.append(change)
    own = dict.fromkeys(edit.module for edit in edits)
    used = {word for name in own for word in re.findall(r"\w+", text_of(module_file(name) or "") or "")}
    changed = {}
    for name in own:
        path, before, after = _changed([edit for edit in edits if edit.module == name], entry, used)
        changed[in_repository(path, name)] = before, without_prefix(after, used)
    return changed


def _changed(edits: Sequence[Edit], entry: Entry, used: set[str]) -> tuple[str, str, str]:
    """The file that these edits of one module are in, its text before and after."""
    founds = [_read_code(edit, edits, entry) for edit in edits]
    writer = Writer(founds, lambda symbol: _read(symbol, entry), used, private=True)
    several = [located(edit, _body(writer.text(found), edit)) for edit, found in zip(edits, founds)]
    before, after = edited(several)
    definitions = writer.definitions()
    if definitions:
        after = _with_definitions(before, after, several, definitions, writer.imports())
    try:
        ast.parse(after)
    except SyntaxError as error:
        raise Inexportable(f"the result would not be valid Python: {error}") from None
    return several[0].block.path, before, after


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
    return Reader(of, top=entry.module.__name__.partition(".")[0]).read(of.definition("edited"))


def _body(function: str, edit: Edit) -> str:
    code = textwrap.dedent(function.partition("\n")[2])
    return code if code.strip("\n") != edit.written.strip("\n") else edit.written


def _read(symbol: Symbol, entry: Entry) -> ReadCode:
    package, _, name = symbol.module.rpartition(".")
    shared = name.startswith("_") and f"{entry.module.__package__}.".startswith(f"{package}.")
    if symbol.name == "PATCH" or not (shared or symbol.module == entry.module.__name__):
        raise Inexportable(f"its code uses {symbol.name} of {symbol.module}, which DeepSpeed does not have")
    of = module(symbol.module)
    return Reader(of, top=symbol.module.partition(".")[0]).read(of.definition(symbol.name))


def _with_definitions(
    before: str, after: str, several: Sequence[Located], definitions: Sequence[str], imports: Sequence[str]
) -> str:
    """The text with the definitions in front of the first function or class that is edited."""
    first = min(each.block.first for each in several)
    text = Text(before)
    [outer] = [each for each in text.tree.body if text.lines(each)[0] <= text.bytes_before(first) < text.lines(each)[1]]
    anchor = text.between(text.lines(outer)[0], text.lines(outer)[1]).splitlines(keepends=True)[0]
    above = text.between(0, text.lines(outer)[0])
    known = dict(_origins(text.tree.body))
    written = [_without_known_imports(each, known) for each in definitions]
    missing = [line for line in imports if not {*_origins(ast.parse(line).body)} <= {*known.items()}]
    if any(name in known for line in missing for name, _ in _origins(ast.parse(line).body)):
        raise Inexportable(f"the file uses a name of `{missing[0]}` for something else")
    assert after.startswith(above + anchor)
    below = after[len(above) :]
    return _with_imports(above, missing) + "\n\n".join(f"{each.rstrip()}\n" for each in written) + "\n\n" + below


def _with_imports(above: str, lines: Sequence[str]) -> str:
    if not lines:
        return above
    text = Text(above)
    imports = [each for each in text.tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    at = text.lines(imports[0])[0] if imports else len(text.bytes)
    return text.changed([(at, at, "".join(f"{line}\n" for line in lines))])


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
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [*_origins([node])]
            if names and all(known.get(name) == origin for name, origin in names):
                gone.append(text.lines(node))
    blank = [(end, end + 1) for _, end in gone if text.bytes[end : end + 1] == b"\n"]
    return text.changed((start, end, "") for start, end in [*gone, *blank])


def without_prefix(text: str, used: set[str]) -> str:
    """Attributes that the patch keeps on DeepSpeed's objects, without dsfix in their names."""

    def renamed(match: re.Match[str]) -> str:
        return f"_{match[1]}" if f"_{match[1]}" not in used else f"_own_{match[1]}"

    text = re.sub(r"\b_dsfix_(\w+)", renamed, text)
    found = re.search(r".*dsfix.*", text, re.IGNORECASE)
    if found:
        raise Inexportable(f"it names dsfix: {found[0].strip()}")
    return text


def in_repository(path: str, name: str) -> str:
    """The path of a file in DeepSpeed's repository, where parts of the package are links to other directories."""
    root = os.path.dirname(os.path.dirname(module_file(name.partition(".")[0]) or ""))
    real = os.path.relpath(os.path.realpath(path), os.path.realpath(root)).replace(os.sep, "/")
    for linked, target in _LINKS.items():
        if real.startswith(linked):
            return target + real[len(linked) :]
    return real
