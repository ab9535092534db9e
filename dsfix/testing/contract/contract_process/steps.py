"""The steps that run inside an inspected process; `look` records what is in effect."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import describe


class Process:
    """One process. A step is the name of a method with its arguments; `done` collects the results."""

    def __init__(self, changes: list[Mapping[str, str]], provided: list[list[str]]) -> None:
        self.changes, self.provided = changes, provided
        self.done: list[Any] = []
        self.errors: dict[str, str] = {}
        self.warnings: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("dsfix").addHandler(handler)

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
            }
        )

    def revert(self, patch_id: str) -> None:
        sys.modules["dsfix"].revert(patch_id)

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


def main(request: str, result: str) -> int:
    """Runs the steps of the file `request` in one process; writes their results to `result`."""
    here = str(Path(__file__).resolve().parents[1])
    sys.path.remove(here)  # the steps have been imported from there
    os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].removeprefix(here).lstrip(os.pathsep)
    arguments = json.loads(Path(request).read_text(encoding="utf-8"))
    process = Process(arguments["changes"], arguments["provided"])
    for name, *values in arguments["steps"]:
        getattr(process, name)(*values)
    Path(result).write_text(json.dumps(process.done), encoding="utf-8")
    return 0
