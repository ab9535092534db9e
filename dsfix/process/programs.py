"""A module of DeepSpeed run as a program, under the name `__main__`: `python -m deepspeed.launcher.launch`, or the copy
`zero_to_fp32.py` in the directory of a checkpoint.

No import hook sees it. Its functions can be edited once they are defined, before ``if __name__ == "__main__":`` calls
them. To get there, dsfix traces the lines of the module's own frame, as a debugger does, from the end of the import of
DeepSpeed up to this statement; functions called meanwhile are not traced.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable
from types import FrameType, ModuleType
from typing import Any, Callable

from .. import log, versions
from ..engine.engine import Engine
from ..engine.source import text_of, whole_tree
from ..versions import module_file

_NAMES = ("__main__", "__mp_main__")  # the second in processes that multiprocessing spawns
COPIED = "deepspeed.utils.zero_to_fp32"  # into the directory of each checkpoint
Callback = Callable[[ModuleType, str], None]


class _Trace:
    """Calls back with the program as a module, and with the name that it is imported by, before its last statement."""

    def __init__(self, path: str, name: str, callback: Callback) -> None:
        self.path, self.name, self.callback = path, name, callback
        self.line = _guard(path)

    def start(self, frame: FrameType | None = None) -> None:
        """With a frame, if the program is running already. Does nothing under a debugger or other tracer."""
        if frame is not None and frame.f_lineno >= self.line:
            return  # it would be traced to its end
        if self.line and sys.gettrace() is None:
            if frame is not None:
                frame.f_trace = self._within
            sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        own = code.co_name == "<module>" and code.co_filename == self.path and _module(frame) is not None
        return self._within if own else None

    def _within(self, frame: FrameType, event: str, argument: Any) -> Any:
        defined = event == "line" and frame.f_lineno == self.line
        if not defined and event != "return":
            return self._within
        if sys.gettrace() == self._called:
            sys.settrace(None)
        frame.f_trace = None
        module = _module(frame)
        if defined and module is not None:
            self.callback(module, self.name)
        return None


def patch_program(engine: Engine) -> None:
    """Looks for a program that is one of the modules to patch, at the end of its import of DeepSpeed, and tells the
    engine when it is defined; says so where it is a copy from another release."""
    copy = _find_program(engine.finder.names, engine.imported)
    if copy:
        log.info_on_rank_zero(
            f"{copy} is not patched: it comes from a release other than the installed DeepSpeed "
            f"{versions.installed('deepspeed')}. `python -m {COPIED}` with the same arguments runs the installed "
            "version with its patches"
        )


def _find_program(names: Iterable[str], callback: Callback) -> str:
    """Returns the path of a copied file whose text comes from a different release, else ""."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_get_module_details" and frame.f_globals.get("__name__") == "runpy":
            name = str(frame.f_locals.get("mod_name"))  # that of `python -m`, which imports its packages first
            path = module_file(name) if name in names else None
            if path is not None:
                _Trace(path, name, callback).start()
            return ""
        if frame.f_code.co_name == "<module>" and _module(frame) is not None:
            return _look_at_script(frame, names, callback)
        frame = frame.f_back
    return ""


def _look_at_script(frame: FrameType, names: Iterable[str], callback: Callback) -> str:
    path = frame.f_code.co_filename
    stem = os.path.basename(path).rpartition(".py")[0]
    for name in {COPIED, *names}:
        if name.rpartition(".")[2] == stem:
            text = text_of(path)
            if text is not None and text == text_of(module_file(name) or ""):
                _Trace(path, name, callback).start(frame)
            elif name == COPIED:
                return path
    return ""


def _module(frame: FrameType) -> ModuleType | None:
    """The program whose own frame this is, or None."""
    name = frame.f_globals.get("__name__")
    module = sys.modules.get(name) if name in _NAMES else None
    known = isinstance(module, ModuleType) and vars(module) is frame.f_globals
    return module if known else None


def _guard(path: str) -> int:
    """The line of the file's ``if __name__ == "__main__":``; 0 if it has none."""
    main_guard = ast.dump(ast.parse("__name__ == '__main__'", mode="eval").body)
    for node in whole_tree(path).body:
        if isinstance(node, ast.If) and ast.dump(node.test) == main_guard:
            return node.lineno
    return 0
