"""Definitions of dsfix written for another file: with other names, without the lab, each once."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Callable

from dsfix.cli.printing.edits import Unwritable
from matrix.pull_requests.reading import FUNCTIONS, LAB, TMP, Meaning, ReadCode, Symbol, binds
from matrix.pull_requests.text import Change, Text

_PREFERRED = {Symbol(LAB, "Lab.initialize"): "initialize", Symbol(LAB, "Lab.parameters"): "full_parameters"}


class Writer:
    """`first` is what refers to all others; `read` reads the definition of a symbol, or refuses it (Unwritable).

    taken: names that the file has already. private: whether all names begin with an underscore. imports: the statements
    that what is written needs.
    """

    def __init__(
        self,
        first: Iterable[ReadCode],
        read: Callable[[Symbol], ReadCode],
        taken: Collection[str] = (),
        private: bool = False,
    ) -> None:
        self._found: dict[Symbol, ReadCode] = {}
        everything = list(first)
        for each in everything:  # which grows
            for symbol in each.symbols:
                if symbol not in self._found:
                    self._found[symbol] = read(symbol)
                    everything.append(self._found[symbol])
        self.imports = sorted(set().union(*(each.imports for each in everything)))
        self._with_tmp: set[Symbol] = set()
        while more := {symbol for symbol, found in self._found.items() if self.needs_tmp(found)} - self._with_tmp:
            self._with_tmp |= more
        self._names: dict[Symbol, str] = {}
        known = {*taken, *(name for line in self.imports for node in ast.parse(line).body for name in binds(node))}
        for symbol in self._found:
            hidden = set().union(*(each.local for each in everything if symbol in each.symbols))
            used = known | hidden | {*self._names.values()}
            self._names[symbol] = next(name for name in _candidates(symbol, private) if name not in used)

    def needs_tmp(self, found: ReadCode) -> bool:
        return any(meaning == TMP for _, meaning, _ in found.meanings) or any(
            callee in self._with_tmp for _, _, callee, _ in found.lab
        )

    def definitions(self) -> list[str]:
        """The text of each definition; those of one module in its order, what a module needs before it."""
        of: dict[str, dict[int, str]] = {}
        needs: dict[str, set[str]] = {}
        for symbol, found in self._found.items():
            assert isinstance(found.node, ast.stmt)
            of.setdefault(symbol.module, {})[found.node.lineno] = self.text(found, symbol)
            needs.setdefault(symbol.module, set()).update(each.module for each in found.symbols)
        texts: list[str] = []
        while of:  # the first whose needs are met; modules do not need each other in a circle
            name = next(name for name in of if not (needs[name] - {name}) & of.keys())
            texts += [text for _, text in sorted(of.pop(name).items())]
        return texts

    def text(self, found: ReadCode, symbol: Symbol | None = None) -> str:
        """The definition, or other code, as it is written."""
        node, text = found.node, found.text
        changes = [*found.changes, *self._changes(found), *self._parameters(found, symbol)]
        if symbol is not None and isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            old = symbol.name.rpartition(".")[2]
            start = text.find(old, text.start(node))
            changes.append((start, start + len(old), self._names[symbol]))
            changes += _shorter_docstrings(text, node)
        within = text.lines(node) if isinstance(node, ast.stmt) else None
        written = textwrap.dedent(text.changed(changes, within))
        return written if found.orphans is None else re.sub(r"\n{3,}", "\n\n", _without(written, found.orphans))

    def _changes(self, found: ReadCode) -> Iterator[Change]:
        text = found.text
        joined: dict[ast.JoinedStr, dict[str, str]] = {}
        for place, meaning, inside in found.meanings:
            old, new = ast.unparse(place), self._names[meaning] if isinstance(meaning, Symbol) else meaning.text
            if inside is not None:
                joined.setdefault(inside, {})[old] = new
            elif old != new:
                yield text.start(place), text.end(place), new
        for call, number, callee, inside in found.lab:
            self._check_passed(call, callee)
            if inside is None:
                yield self._argument(text, call, number, callee)
            elif number:
                raise Unwritable(f"it passes the lab to {ast.unparse(call.func)} in a string")
            else:
                joined[inside] = {**self._in_string(call, callee), **joined.get(inside, {})}
        for string, pairs in joined.items():
            start, end = text.start(string), text.end(string)
            yield start, end, _in_braces(text.between(start, end), pairs)

    def _argument(self, text: Text, call: ast.Call, number: int, callee: Meaning) -> Change:
        """The lab is not passed on; the directory is, where it is needed."""
        argument = call.args[number]
        if callee in self._with_tmp:
            return text.start(argument), text.end(argument), TMP.text
        following: list[ast.expr | ast.keyword] = [*call.args[number + 1 :], *call.keywords]
        if following:
            return text.start(argument), min(text.start(each) for each in following), ""
        before = text.end(call.args[number - 1]) if number else text.start(argument)
        return before, text.end(argument), ""

    def _in_string(self, call: ast.Call, callee: Meaning) -> dict[str, str]:
        """The same in an f-string, where nodes have no reliable places before Python 3.12."""
        name, directory = ast.unparse(call.func), TMP.text if callee in self._with_tmp else ""
        return {f"{name}(lab)": f"{name}({directory})", f"{name}(lab, ": f"{name}({directory and directory + ', '}"}

    def _check_passed(self, call: ast.Call, callee: Meaning) -> None:
        if not isinstance(callee, Symbol) or not isinstance(self._found[callee].node, ast.FunctionDef):
            raise Unwritable(f"it passes the lab to {ast.unparse(call.func)}")

    def _parameters(self, found: ReadCode, symbol: Symbol | None) -> Iterator[Change]:
        method = symbol is not None and symbol.name.startswith("Lab.")
        for function in ast.walk(found.node):
            if not isinstance(function, ast.FunctionDef) or (method and function is not found.node):
                continue
            given = function.args
            for number, each in enumerate(given.args):
                start, end = found.text.start(each), found.text.end(each)
                if each.arg != ("self" if method else "lab"):
                    continue
                if self.needs_tmp(found):
                    yield start, end, TMP.text
                elif given.args[number + 1 :] or given.kwonlyargs or given.vararg or given.kwarg:
                    yield start, found.text.find(",", end) + 2, ""
                else:
                    yield start, end, ""


def _candidates(symbol: Symbol, private: bool) -> Iterator[str]:
    name = _PREFERRED.get(symbol, symbol.name)
    if private:
        name = f"_{name.lstrip('_')}"
    yield name
    of = symbol.module.rpartition(".")[2].lstrip("_")
    longer = f"_{of}{name}" if name.startswith("_") else f"{of}_{name}"
    yield longer
    yield from (f"{longer}_{number}" for number in range(2, 100))


def _in_braces(string: str, pairs: Mapping[str, str]) -> str:
    """An f-string's source, with other expressions in its braces."""
    for old, new in pairs.items():
        pattern = rf"(?<![\w.]){re.escape(old)}" + (r"(?!\w)" if old[-1].isalnum() else "")
        string = re.sub(r"\{[^{}]+\}", lambda part: re.sub(pattern, lambda _: new, part[0]), string)  # noqa: B023
    return string


def _shorter_docstrings(text: Text, node: ast.stmt) -> Iterator[Change]:
    """The first paragraph of each docstring: the rest is about reproductions."""
    for each in ast.walk(node):
        if isinstance(each, (*FUNCTIONS, ast.ClassDef)) and "\n\n" in (ast.get_docstring(each, clean=False) or ""):
            start, end = text.start(each.body[0]), text.end(each.body[0])
            yield start, end, text.between(start, end).partition("\n\n")[0] + '"""'


def _without(source: str, orphans: set[str]) -> str:
    """The code without local imports and variables among `orphans` that nothing uses any longer."""
    text = Text(source)
    used = {each.id for each in ast.walk(text.tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    gone = []
    for node in ast.walk(text.tree):
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        if isinstance(node, (ast.Assign, ast.Import, ast.ImportFrom)):
            names = {name for each in targets for name in binds(each) or [""]}
            if names <= orphans - used:
                gone.append(node)
    if not gone:
        return source
    more = {each.id for node in gone for each in ast.walk(node) if isinstance(each, ast.Name)}
    return _without(text.changed((*text.lines(node), "") for node in gone), orphans | more)
