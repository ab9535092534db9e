"""Definitions of dsfix written for another file: with other names, without the lab, each once."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Callable

from .meanings import LAB, TMP, Symbol, Written
from .reading import ReadCode
from .text import Change, Inexportable, Text

_PREFERRED = {Symbol(LAB, "Lab.initialize"): "initialize", Symbol(LAB, "Lab.parameters"): "full_parameters"}
_WITH_BODY = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Writer:
    """`first` is what refers to all others; `read` reads the definition of a symbol, or refuses it (Inexportable).

    taken: names that the file has already. private: whether all names begin with an underscore. names: what each
    symbol is called there.
    """

    def __init__(
        self,
        first: Iterable[ReadCode],
        read: Callable[[Symbol], ReadCode],
        taken: Collection[str] = (),
        private: bool = False,
    ) -> None:
        self._private = private
        self.first, self.found = list(first), dict[Symbol, ReadCode]()
        waiting = [symbol for each in self.first for symbol in each.symbols]
        while waiting:
            symbol = waiting.pop(0)
            if symbol not in self.found:
                self.found[symbol] = read(symbol)
                waiting += self.found[symbol].symbols
        self._everything = [*self.first, *self.found.values()]
        self._with_tmp = self._needing_tmp()
        self.names = self._named({*taken, *(name for each in self.imports() for name in _bound(each))})

    def imports(self) -> list[str]:
        """The import statements that what is written needs."""
        needed = [
            line
            for each in self._everything
            for _, meaning, _ in each.meanings
            if isinstance(meaning, Written)
            for line in meaning.imports
        ]
        skips = ["import pytest" for each in self._everything if each.skips]
        return sorted({*needed, *skips})

    def needs_tmp(self, found: ReadCode) -> bool:
        return any(meaning == TMP for _, meaning, _ in found.meanings) or any(
            isinstance(callee, Symbol) and callee in self._with_tmp for _, _, callee, _ in found.lab
        )

    def _needing_tmp(self) -> set[Symbol]:
        self._with_tmp = set()
        while True:
            more = {symbol for symbol, found in self.found.items() if self.needs_tmp(found)}
            if more == self._with_tmp:
                return more
            self._with_tmp = more

    def _named(self, taken: set[str]) -> dict[Symbol, str]:
        names: dict[Symbol, str] = {}
        for symbol in self.found:
            hidden = set().union(*(each.local for each in self._everything if symbol in each.symbols))
            name = next(name for name in _candidates(symbol, self._private) if name not in taken | hidden)
            names[symbol] = name
            taken.add(name)
        return names

    def definitions(self) -> list[str]:
        """The text of each definition; those of one module in its order, what a module needs before it."""
        modules = list(dict.fromkeys(symbol.module for symbol in self.found))
        needs = {
            name: {
                other.module for symbol, each in self.found.items() if symbol.module == name for other in each.symbols
            }
            for name in modules
        }
        ordered: list[str] = []
        while modules:  # the first whose needs are met; modules do not need each other in a circle
            name = next(name for name in modules if needs[name] - {name} <= {*ordered})
            ordered.append(name)
            modules.remove(name)
        texts: dict[tuple[int, int], str] = {}
        for number, name in enumerate(ordered):
            for symbol, found in self.found.items():
                if symbol.module == name and isinstance(found.node, ast.stmt):
                    texts[(number, found.node.lineno)] = self.text(found, symbol)
        return [text for _, text in sorted(texts.items())]

    def text(self, found: ReadCode, symbol: Symbol | None = None) -> str:
        """The definition, or other code, as it is written."""
        node, text = found.node, found.text
        changes = [*self._changes(found), *self._parameters(found, symbol)]
        if symbol is not None and isinstance(node, _WITH_BODY):
            old = symbol.name.rpartition(".")[2]
            start = text.find(old, text.start(node), len(text.bytes))
            changes.append((start, start + len(old), self.names[symbol]))
            changes += _shorter_docstring(text, node)
        within = text.lines(node) if isinstance(node, ast.stmt) else None
        written = textwrap.dedent(text.changed(changes, within))
        orphans = {each.id for gone in found.gone for each in ast.walk(gone) if isinstance(each, ast.Name)}
        return re.sub(r"\n{3,}", "\n\n", _without(written, orphans)) if found.gone else written

    def _written(self, meaning: Symbol | Written) -> str:
        return self.names[meaning] if isinstance(meaning, Symbol) else meaning.text

    def _changes(self, found: ReadCode) -> Iterator[Change]:
        text = found.text
        for statement in found.gone:
            yield (*text.lines(statement), "")
        for assignment, numbers in found.fewer.items():
            for each in (assignment.targets[0], assignment.value):
                assert isinstance(each, ast.Tuple)
                yield from _without_elements(text, each.elts, numbers)
        joined: dict[ast.JoinedStr, dict[str, str]] = {}
        for place, meaning, inside in found.meanings:
            old, new = ast.unparse(place), self._written(meaning)
            if inside is not None:
                joined.setdefault(inside, {})[old] = new
            elif old != new:
                yield text.start(place), text.end(place), new
        for call, number, callee, inside in found.lab:
            if inside is None:
                yield self._argument(text, call, number, callee)
            else:
                joined[inside] = {**self._in_string(call, number, callee), **joined.get(inside, {})}
        for string, pairs in joined.items():
            start, end = text.start(string), text.end(string)
            yield start, end, _in_braces(text.between(start, end), pairs)
        for raised in found.skips:
            if isinstance(raised.exc, ast.Call):
                yield text.start(raised), text.end(raised.exc.func), "pytest.skip"
                yield text.end(raised.exc), text.end(raised), ""

    def _argument(self, text: Text, call: ast.Call, number: int, callee: object) -> Change:
        """The lab is not passed on; the directory is, where it is needed."""
        self._check_passed(call, callee)
        argument = call.args[number]
        if callee in self._with_tmp:
            return text.start(argument), text.end(argument), TMP.text
        following: list[ast.expr | ast.keyword] = [*call.args[number + 1 :], *call.keywords]
        if following:
            return text.start(argument), min(text.start(each) for each in following), ""
        before = text.end(call.args[number - 1]) if number else text.start(argument)
        return before, text.end(argument), ""

    def _in_string(self, call: ast.Call, number: int, callee: object) -> dict[str, str]:
        """The same in an f-string, where nodes have no reliable places before Python 3.12."""
        self._check_passed(call, callee)
        if number:
            raise Inexportable(f"it passes the lab to {ast.unparse(call.func)} in a string")
        name, directory = ast.unparse(call.func), TMP.text if callee in self._with_tmp else ""
        return {f"{name}(lab)": f"{name}({directory})", f"{name}(lab, ": f"{name}({directory and directory + ', '}"}

    def _check_passed(self, call: ast.Call, callee: object) -> None:
        if not isinstance(callee, Symbol) or not isinstance(self.found[callee].node, ast.FunctionDef):
            raise Inexportable(f"it passes the lab to {ast.unparse(call.func)}")

    def _parameters(self, found: ReadCode, symbol: Symbol | None) -> Iterator[Change]:
        lab = "self" if symbol is not None and symbol.name.startswith("Lab.") else "lab"
        functions = [each for each in ast.walk(found.node) if isinstance(each, ast.FunctionDef)]
        for function in functions:
            given = [*function.args.args, *function.args.kwonlyargs]
            for number, each in enumerate(function.args.args):
                if each.arg != lab or (lab == "self" and function is not found.node):
                    continue
                if self.needs_tmp(found):
                    yield found.text.start(each), found.text.end(each), TMP.text
                elif number + 1 < len(given) or function.args.vararg or function.args.kwarg:
                    comma = found.text.find(",", found.text.end(each), len(found.text.bytes))
                    yield found.text.start(each), comma + 2, ""
                else:
                    yield found.text.start(each), found.text.end(each), ""


def _without_elements(text: Text, elements: Sequence[ast.expr], numbers: Collection[int]) -> Iterator[Change]:
    last = max({*range(len(elements))} - {*numbers})
    for number in numbers:
        if number < last:
            yield text.start(elements[number]), text.start(elements[number + 1]), ""
        else:
            yield text.end(elements[number - 1]), text.end(elements[number]), ""


def _candidates(symbol: Symbol, private: bool) -> Iterator[str]:
    name = _PREFERRED.get(symbol, symbol.name)
    if private:
        name = f"_{name.lstrip('_')}"
    yield name
    of = symbol.module.rpartition(".")[2].lstrip("_")
    longer = f"_{of}{name}" if name.startswith("_") else f"{of}_{name}"
    yield longer
    yield from (f"{longer}_{number}" for number in range(2, 100))


def _bound(line: str) -> list[str]:
    return [alias.asname or alias.name for node in ast.parse(line).body for alias in node.names]  # type: ignore[attr-defined]


def _in_braces(string: str, pairs: Mapping[str, str]) -> str:
    """An f-string's source, with other expressions in its braces."""
    for old, new in pairs.items():
        pattern = rf"(?<![\w.]){re.escape(old)}" + (r"(?!\w)" if old[-1].isalnum() else "")
        string = re.sub(r"\{[^{}]+\}", lambda part: re.sub(pattern, lambda _: new, part[0]), string)  # noqa: B023
    return string


def _shorter_docstring(text: Text, node: ast.stmt) -> Iterator[Change]:
    """The first paragraph of each docstring: the rest is about reproductions."""
    for each in ast.walk(node):
        body = each.body if isinstance(each, _WITH_BODY) else []
        first = body[0].value if body and isinstance(body[0], ast.Expr) else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and "\n\n" in first.value:
            start, end = text.start(first), text.end(first)
            yield start, end, f"{text.between(start, end).partition(chr(10) * 2)[0]}{chr(34) * 3}"


def _without(source: str, orphans: set[str]) -> str:
    """The code without local imports and variables among `orphans` that nothing uses any longer."""
    text = Text(source)
    used = {each.id for each in ast.walk(text.tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    gone = []
    for node in ast.walk(text.tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Assign):
            names = [each.id if isinstance(each, ast.Name) else "" for each in node.targets]
        else:
            continue
        if {*names} <= orphans - used:
            gone.append(node)
    if not gone:
        return source
    more = {each.id for node in gone for each in ast.walk(node) if isinstance(each, ast.Name)}
    return _without(text.changed((*text.lines(node), "") for node in gone), orphans | more)
