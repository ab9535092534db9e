"""Imports dsfix when DeepSpeed is first imported; the cost is negligible for a process that never imports it.

If anything fails here, DeepSpeed is imported unpatched with a warning; under DSFIX_STRICT=1 the error is raised.
Pythons that dsfix does not support load this file too, so it runs on 3.7 and needs only `sys`.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

NAME = "deepspeed"


class DeepSpeedFinder:
    """The first entry of sys.meta_path until DeepSpeed is imported; delegates to the other finders."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != NAME:
            return None
        if "dsfix" in sys.modules:  # the script has imported it
            _remove_finder()
            return None
        spec: ModuleSpec | None = _find(self)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """Wraps DeepSpeed's loader: find_spec, as transformers and accelerate call it, must not import dsfix."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self.__dict__.get("_loader"), name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        _activate()
        own = _find()
        if own is not None and own.origin == spec.origin:
            self._loader = own.loader  # with dsfix's own hook
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: "ModuleType") -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)


class _FinderOfThisDsfix:
    """For a Python without dsfix: finds the installation that this file belongs to."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in ("dsfix", "dsfix.patches"):
            return None
        import os
        from importlib.util import spec_from_file_location

        directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        if name == "dsfix.patches":
            installed = os.path.join(directory, "patches")
            # in a checkout they are next to the package
            directory = installed if os.path.isdir(installed) else os.path.join(os.path.dirname(directory), "patches")
        file = os.path.join(directory, "__init__.py")
        return spec_from_file_location(name, file, submodule_search_locations=[directory])


def _find(without: "Any" = None) -> "Any":
    for finder in list(sys.meta_path):
        if finder is not without and hasattr(finder, "find_spec"):
            spec = finder.find_spec(NAME, None, None)
            if spec is not None:
                return spec
    return None


def _remove_finder() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, DeepSpeedFinder)]


def _activate() -> None:
    _remove_finder()
    import os

    try:
        _import_dsfix()
    except Exception as error:  # an unpatched job is better than none
        if os.environ.get("DSFIX_STRICT", "").strip().lower() not in ("", "0", "false", "no", "off"):
            raise
        if sys.stderr is not None:
            sys.stderr.write(
                f"[dsfix] WARNING: no patch is applied: {sys.executable} cannot import dsfix "
                f"({type(error).__name__}: {error}). Remedy: install dsfix for the Python of the job, 3.9 or newer\n"
            )


def _import_dsfix() -> None:
    from importlib import import_module

    if sys.version_info < (3, 9):  # noqa: UP036
        raise RuntimeError("Python {}.{} is too old".format(*sys.version_info))
    try:
        # a directory named dsfix, such as a clone, is importable as an empty namespace package
        if getattr(import_module("dsfix"), "__file__", None) is not None:
            return
        del sys.modules["dsfix"]
    except ModuleNotFoundError as missing:
        if missing.name != "dsfix":
            raise
    sys.meta_path.insert(0, _FinderOfThisDsfix())
    import_module("dsfix")


sys.meta_path.insert(0, DeepSpeedFinder())
