"""One patch on one release that it applies to, and the processes in which it is inspected."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsfix.catalogue.registry import Entry
from dsfix.patch import Edit, Patch, Provide, Severity
from dsfix.testing.contract import machine
from dsfix.testing.contract.contract_process import describe
from dsfix.testing.contract.machine import Machine


class ContractBroken(AssertionError):
    """A patch does not keep the contract; the message names the patch, the release and the difference."""


@dataclass(frozen=True)
class Case:
    """One patch on one release.

    root: directory of the release. catalogue: all patches. applying: those that apply to the release, including this
    one. together: those that are inspected as one. front: first entries of sys.path.
    """

    entry: Entry
    release: str
    root: Path
    catalogue: Mapping[str, Entry]
    applying: tuple[Entry, ...]
    front: tuple[Path, ...]
    machine: Machine
    together: tuple[Entry, ...] = ()

    def __hash__(self) -> int:
        return hash((self.id, self.root, len(self.together)))

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def patch(self) -> Patch:
        return self.entry.patch

    @property
    def companions(self) -> tuple[Entry, ...]:
        """The other patches that the release needs in order to be imported."""
        return tuple(e for e in self.applying if e.patch.severity is Severity.IMPORT and e is not self.entry)

    @property
    def all_together(self) -> Case:
        """All patches for the release as one case, which is the same for each of them."""
        return dataclasses.replace(self, entry=self.applying[0], together=self.applying)

    @property
    def changes(self) -> list[dict[str, str]]:
        """The changes as plain data, for processes that do not import dsfix."""
        changes = (change for entry in self.together or (self.entry,) for change in entry.patch.changes)
        plain = ({"verb": type(c).__name__, "module": c.module, "qualname": c.qualname} for c in changes)
        return list({describe.place(**each): each for each in plain}.values())

    @property
    def edits(self) -> list[Edit]:
        return [change for change in self.patch.changes if isinstance(change, Edit)]

    @property
    def evidence(self) -> list[str]:
        return list(dict.fromkeys(each.module for each in (*self.patch.present, *self.patch.fixed)))

    @property
    def modules(self) -> list[str]:
        """All modules that the patch concerns, in the order of their import after dsfix."""
        return list(dict.fromkeys(("torch", "deepspeed", *self.patch.modules, *self.evidence)))

    @property
    def targets(self) -> list[str]:
        """The modules that are changed, in the order of their import after dsfix."""
        entries = self.together or (self.entry,)
        return list(dict.fromkeys(("torch", "deepspeed", *(m for entry in entries for m in entry.patch.modules))))

    @property
    def is_import_patch(self) -> bool:
        return self.patch.severity is Severity.IMPORT

    @property
    def on(self) -> dict[str, Any]:
        """The variables that enable this patch and the companions; or all of `together`."""
        return {"DSFIX_ONLY": ",".join(each.id for each in self.together or (self.entry, *self.companions))}

    @property
    def off(self) -> dict[str, Any]:
        """The variables that enable only the companions."""
        companions = {companion.id for companion in self.companions}
        return {"DSFIX_SKIP": ",".join(each for each in self.catalogue if each not in companions)}

    def broken(self, what: str) -> ContractBroken:
        return ContractBroken(f"{self.id} on DeepSpeed {self.release}: {what}")

    def expect(self, holds: object, what: str) -> None:
        if not holds:
            raise self.broken(what)

    def file(self, module: str) -> tuple[Path, str]:
        """(directory of the package, relative path) of a module's file."""
        package, *rest = module.split(".")
        directory = self.root
        if not (self.root / package).exists():
            spec = importlib.util.find_spec(package)
            assert spec is not None and spec.origin is not None, f"{package} is not installed"  # noqa: PT018
            directory = Path(spec.origin).parents[1]
        as_module = "/".join([package, *rest]) + ".py"
        return directory, as_module if (directory / as_module).is_file() else "/".join([package, *rest, "__init__.py"])

    def text(self, module: str) -> str:
        directory, path = self.file(module)
        return (directory / path).read_text(encoding="utf-8")

    def run(
        self, *steps: Sequence[Any], copy: Path | None = None, unloaded: Sequence[str] = (), **environment: str
    ) -> list[Any]:
        """The results of the steps in a separate process, with the release or a copy of it.

        unloaded: modules that must not be imported when the process starts.
        """
        root = copy or self.root
        copied = [] if copy is None else [path.name for path in copy.iterdir() if not path.is_symlink()]
        server = self.machine.without([*unloaded, *copied])
        companions = [change for companion in self.companions for change in companion.patch.changes]
        provided = [[change.module, change.name] for change in companions if isinstance(change, Provide)]
        arguments = {"changes": self.changes, "provided": provided, "steps": steps}
        return server.run(arguments, [*self.front, root], environment)

    def look(self, copy: Path | None = None, **environment: str) -> dict[str, Any]:
        """What is in effect after importing dsfix and then all modules."""
        (observed,) = self.run(["load", "dsfix", *self.modules], ["look"], copy=copy, **environment)
        return dict(observed)

    def copied(self, changed: Mapping[str, str]) -> Path:
        """A copy of `root` in which these modules have the given text; packages from elsewhere are copied into it."""
        directory = self.machine.directory()
        by_root: dict[tuple[Path, str], dict[str, str]] = {}
        for module, text in changed.items():
            root, path = self.file(module)
            by_root.setdefault((root, path.partition("/")[0]), {})[path] = text
        for (root, package), files in by_root.items():
            machine.copy(directory, root, package, files)
        for each in self.root.iterdir():
            if not (directory / each.name).exists():
                (directory / each.name).symlink_to(each)
        return directory

    def edited(self, *ids: str, telling: bool) -> dict[str, str]:
        """module -> its text with the edits of the patches, as `dsfix diff` shows it, or with the effect reports."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DSFIX_", "_DSFIX_"))}
        environment["PYTHONPATH"] = os.pathsep.join(
            [*map(str, (*self.front, self.root)), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        environment["DSFIX_ONLY"] = ",".join(ids)
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("edits.py")), *ids],
            env=environment,
            cwd=self.machine.scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        self.expect(done.returncode == 0, f"the edits ended with {done.returncode}: {done.stdout}{done.stderr}")
        return {module: texts[telling] for module, texts in json.loads(done.stdout).items()}
