"""The steps that run inside a process forked by a server; `look` records what is in effect."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import logging
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from . import describe

Step = Sequence[Any]
_PROBE = "another_patch"


class Process:
    """One process. A step is the name of a method with its arguments; `done` collects the results."""

    def __init__(self, changes: list[Mapping[str, str]], provided: list[list[str]]) -> None:
        self.changes, self.provided = changes, provided
        self.done: list[Any] = []
        self.errors: dict[str, str] = {}
        self.warnings: list[str] = []
        self.remembered: dict[str, tuple[Any, Any]] = {}
        self.probes: list[Any] = []
        self.probed: dict[str, Any] = {}
        self.filled: set[str] = set()
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("dsfix").addHandler(handler)

    def steps(self, steps: Sequence[Step]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    def load(self, *names: str) -> None:
        """Imports modules; the error of a failed import stays in `errors` until the module is imported."""
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:
                self.errors[name] = f"{type(error).__name__}: {error}"
            else:
                self.errors.pop(name, None)

    def provide(self) -> None:
        """Adds names that other patches provide, as in an older torch or numpy."""
        for module, name in self.provided:
            with contextlib.suppress(ImportError):
                vars(importlib.import_module(module)).setdefault(name, None)

    def look(self) -> None:
        """Records what is in effect and what dsfix reports."""
        dsfix: Any = sys.modules.get("dsfix")
        self.done.append(
            {
                "reports": {each.id: [each.outcome.value, each.reason] for each in dsfix.report()} if dsfix else {},
                "seen": describe.seen(self.changes),
                "errors": dict(self.errors),
                "warnings": list(self.warnings),
                "deepspeed": getattr(sys.modules.get("deepspeed"), "__version__", None),
            }
        )

    def remember(self) -> None:
        self.remembered = {describe.place(**change): self._objects(change) for change in self.changes}

    def compare(self) -> None:
        """Records the targets whose object is not the remembered one."""
        others = []
        for change in self.changes:
            place = describe.place(**change)
            now, before = self._objects(change), self.remembered[place]
            if any(one is not other for one, other in zip(now, before)):
                others.append(place)
        self.done.append(others)

    def _objects(self, change: Mapping[str, str]) -> tuple[Any, Any]:
        module = sys.modules[change["module"]]
        holder, name = describe.holder_of(module, change["qualname"])
        value = vars(holder).get(name, describe.ABSENT)
        code = None
        if change["verb"] == "Edit":
            with contextlib.suppress(LookupError):
                code = describe.function_of(module, change["qualname"]).__code__
        return value, code

    def replace(self) -> None:
        """Puts another package's object at the targets, except for plain values; records those targets."""
        replaced = []
        other = ModuleType("another_package")
        sys.modules[other.__name__] = other
        for change in self.changes:
            holder, name = describe.holder_of(sys.modules[change["module"]], change["qualname"])
            provided = change["verb"] == "Provide"  # a name that may be absent
            theirs = _their_function(name) if provided else _theirs(vars(holder).get(name), name)
            if theirs is not None:
                setattr(holder, name, theirs)
                replaced.append(describe.place(**change))
        self.done.append(replaced)

    def revert(self, patch_id: str) -> None:
        sys.modules["dsfix"].revert(patch_id)

    def loaded(self) -> None:
        self.done.append(sorted(sys.modules))

    def reload(self, name: str) -> None:
        """Reloads a module; records the error, or ""."""
        try:
            importlib.reload(sys.modules[name])
        except Exception as error:
            self.done.append(f"{type(error).__name__}: {error}")
        else:
            self.done.append("")

    def forget(self) -> None:
        for name in [n for n in sys.modules if n.partition(".")[0] == "dsfix"]:
            del sys.modules[name]

    def probe(self) -> None:
        """Edits the same functions with a second patch, always in the same way; records those it could not edit."""
        self.done.append([])
        for change in self.changes:
            qualname = change["qualname"]
            if change["verb"] != "Edit" or qualname in self.filled:
                continue
            probes = list(self._probes(change))
            if not any(map(self._edited, probes)):
                if len(probes) == 1:
                    self.filled.add(qualname)
                else:
                    self.done[-1].append(qualname)

    def occupied(self) -> None:
        """Records the functions whose only statement the patch edits, which leaves no place for a second patch."""
        self.done.append(sorted(self.filled))

    def _probes(self, change: Mapping[str, str]) -> Iterator[Any]:
        """Edits of the changed function, one before each of its statements."""
        from dsfix.engine import anchors, source
        from dsfix.patch import Edit

        target = f"{change['module']}:{source.split_target(change['qualname'])[0]}"
        if target in self.probed:
            yield self.probed[target]
            return
        path = sys.modules[change["module"]].__file__ or ""
        for block in source.find_blocks(path, target.partition(":")[2]):
            function = block.parse()
            for statement in function.body[ast.get_docstring(function) is not None :]:
                anchor = ast.unparse(statement)
                yield Edit(
                    target, f"{_PROBE!r}.strip()", before=anchor, count=len(anchors.statements(function, anchor))
                )

    def _edited(self, edit: Any) -> bool:
        from dsfix.engine import engine
        from dsfix.engine.cache import Cache
        from dsfix.outcome import Refused
        from dsfix.patch import Patch, Severity

        module = sys.modules[edit.module]
        try:
            patch = Patch("t", Severity.CRASH, {}, (edit,), "", {}, None)
            self.probes += engine.apply(_PROBE, patch, module, Cache())
        except Refused:  # the patch itself changes that statement
            return False
        self.probed[edit.target] = edit
        return True

    def unprobe(self) -> None:
        while self.probes:
            self.probes.pop().undo()

    def job(self, path: str) -> None:
        sys.argv = [path]
        runpy.run_path(path, run_name="__main__")

    def orders(self, items: list[str]) -> None:
        """Imports the items in every order, each in its own process; records the results of all orders.

        Equivalent orders are tried once: an item already imported by another is skipped, importing a.b imports a first,
        and importing deepspeed imports torch first.
        """
        self._in_children(lambda record: self._order(items, [], record))

    def _order(self, items: list[str], order: list[str], record: Callable[[Any], None]) -> None:
        left = [item for item in items if item not in order and item not in sys.modules]
        top = [each for each in left if "." not in each or each.partition(".")[0] not in left]
        if "torch" in top and set(order) - {"dsfix"}:  # importing deepspeed is importing torch first
            top = [each for each in top if each != "deepspeed"]
        inner = [each for each in top if "." in each]
        if len(inner) > 2:  # all n! orders of independent modules would show nothing new
            top = [each for each in top if each not in inner[1:]]
        if not top:
            self._leaf(order, record)
            return
        for each in top[1:]:
            _forked(lambda each=each: self._import_then_rest(each, items, order, record))  # type: ignore[misc]
        self._import_then_rest(top[0], items, order, record)

    def _import_then_rest(self, name: str, items: list[str], order: list[str], record: Callable[[Any], None]) -> None:
        if name.partition(".")[0] == "deepspeed" and "dsfix" not in order:
            self.provide()
        self.load(name)
        self._order(items, [*order, name], record)

    def _leaf(self, order: list[str], record: Callable[[Any], None]) -> None:
        failed = dict(self.errors)
        self.load(*failed)
        self.look()
        record({**self.done.pop(), "order": order, "failed": failed})

    def reverts(self, orders: list[list[str]]) -> None:
        """Reverts the patches in these orders, each in its own process; records what is in effect after each revert."""

        def all_orders(record: Callable[[Any], None]) -> None:
            for order in orders:
                _forked(lambda order=order: self._reverted(order, record))  # type: ignore[misc]

        self._in_children(all_orders)

    def _reverted(self, order: list[str], record: Callable[[Any], None]) -> None:
        for patch_id in order:
            self.revert(patch_id)
            self.look()
            record({**self.done.pop(), "order": order, "reverted": patch_id})

    def _in_children(self, work: Callable[[Callable[[Any], None]], None]) -> None:
        with tempfile.NamedTemporaryFile("a+", prefix="contract-", encoding="utf-8") as file:

            def record(value: Any) -> None:
                os.write(file.fileno(), (json.dumps(value) + "\n").encode())  # opened for appending: whole lines

            _forked(lambda: work(record))
            file.seek(0)
            self.done.append([json.loads(line) for line in file])


def _forked(work: Callable[[], None]) -> None:
    """Runs `work` in a child process. Raises RuntimeError if it fails."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise RuntimeError("a forked process failed")


def _their_function(name: str) -> Any:
    def theirs(*arguments: Any, **keywords: Any) -> str:
        return "another package's"

    theirs.__module__, theirs.__name__ = "another_package", name
    return theirs


def _theirs(value: Any, name: str) -> Any:
    """Another package's object of the same kind; None for a plain value, whose owner cannot be determined."""
    theirs = _their_function(name)
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(theirs)
    if isinstance(value, property):
        return property(theirs, theirs, theirs)
    if isinstance(value, type):
        return type(name, (), {"__module__": "another_package"})
    return theirs if isinstance(value, FunctionType) or callable(value) else None


def run(changes: list[Mapping[str, str]], provided: list[list[str]], steps: Sequence[Step]) -> list[Any]:
    """Runs the steps in one process; returns their results in order."""
    process = Process(changes, provided)
    process.steps(steps)
    return process.done
