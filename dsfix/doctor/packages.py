"""What is installed: versions, and what torch and DeepSpeed report in their files and when imported."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from .. import versions
from ..engine.source import text_of
from ..versions import module_file
from . import probe
from .files import text
from .programs import ProgramOutput, first_line, run_program

STACK = ("torch", "deepspeed", "transformers", "accelerate", "peft", "trl")
SHOWN = (*STACK, "numpy", "pydantic", "setuptools", "ninja", "triton", "bitsandbytes", "flash-attn", "ms-swift")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_OP = re.compile(r"^(\w+)[ .]+\[(YES|NO)\][ .]+\[(OKAY|NO)\]\s*$", re.M)


@dataclass(frozen=True)
class Probe:
    """What a package reported about itself in a separate process.

    `facts`: by part. `errors`: exceptions by part, one line each. `stopped`: why the process did not finish, or "";
    `at`: the part at which it stopped.
    """

    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""
    at: str = ""

    @property
    def failed(self) -> str:
        """Why the import failed, "" if it succeeded or was not tried."""
        return self.errors.get("import", self.stopped if self.at == "import" else "")

    def fact(self, part: str, name: str) -> Any:
        return self.facts.get(part, {}).get(name)


@dataclass(frozen=True)
class Torch:
    """From torch's files: `cuda` and `hip` are versions, "" if torch was built without.

    `baton`: whether a leftover lock file blocks the compilation of an op until it is deleted.
    """

    file: str = ""
    cuda: str = ""
    hip: str = ""
    baton: bool = True


@dataclass(frozen=True)
class DeepSpeed:
    """From DeepSpeed's files: how it was built, and which versions and accelerators it accepts.

    `prebuilt`: the ops compiled at installation; `missing`: those of them without a file for this Python.
    `built_with`: versions of torch and CUDA, like "2.3" and "12.1".
    """

    file: str = ""
    prebuilt: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    built_for: str = ""
    built_with: Mapping[str, str] = field(default_factory=dict)
    cuda_alike: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    accelerators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unmet:
    """A declared requirement that is not satisfied; `found` is the installed version, None if not installed."""

    package: str
    requirement: str
    found: str | None


@dataclass(frozen=True)
class Packages:
    """The installed packages. `versions`: None if a distribution is not installed, "" if it has no metadata."""

    versions: Mapping[str, str | None]
    torch: Torch
    deepspeed: DeepSpeed
    unmet: tuple[Unmet, ...] = ()
    torch_probe: Probe = Probe()
    deepspeed_probe: Probe = Probe()
    dsfix_probe: Probe | None = None

    @property
    def ops(self) -> dict[str, tuple[bool, bool]]:
        """From DeepSpeed's report, by op: whether it is prebuilt, and whether it can be built here."""
        probe = self.dsfix_probe or self.deepspeed_probe
        return read_report(str(probe.fact("report", "text") or ""))


def collect() -> Packages:
    """Collects what is known without importing anything."""
    return Packages(
        versions={name: versions.installed(name) for name in SHOWN},
        torch=torch_files(module_file("torch")),
        deepspeed=deepspeed_files(module_file("deepspeed.runtime") and module_file("deepspeed")),
        unmet=unmet(),
    )


def torch_files(file: str | None) -> Torch:
    if file is None:
        return Torch()
    package = Path(file).parent
    version = _literals(package / "version.py")
    cuda, hip = (str(version.get(name) or "") for name in ("cuda", "hip"))
    extension = text(package / "utils/cpp_extension.py")
    return Torch(file, cuda, hip, baton=not extension or "FileBaton(" in extension)


def deepspeed_files(file: str | None) -> DeepSpeed:
    if file is None:
        return DeepSpeed()
    package = Path(file).parent
    build = _literals(package / "git_version_info_installed.py")
    installed = build.get("installed_ops")
    ops = tuple(op for op, built in installed.items() if built) if isinstance(installed, dict) else ()
    info = build.get("torch_info")
    alike = _literals(package / "ops/op_builder/builder.py").get("cuda_minor_mismatch_ok")
    accelerators = _literals(package / "accelerator/real_accelerator.py").get("SUPPORTED_ACCELERATOR_LIST")
    return DeepSpeed(
        file=file,
        prebuilt=ops,
        missing=tuple(
            op for op in ops if not any(any((package / "ops").rglob(f"{op}_op{end}")) for end in EXTENSION_SUFFIXES)
        ),
        built_for=str(build.get("accelerator_name") or ""),
        built_with={name: str(value) for name, value in info.items()} if isinstance(info, dict) else {},
        cuda_alike={major: tuple(each) for major, each in alike.items()} if isinstance(alike, dict) else {},
        accelerators=tuple(accelerators) if isinstance(accelerators, list) else (),
    )


def _literals(path: Path) -> dict[str, Any]:
    try:
        tree = ast.parse(text_of(str(path)) or "")
    except (SyntaxError, ValueError, RecursionError):
        return {}
    literals = {}
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            with contextlib.suppress(ValueError, TypeError):  # not a literal
                if isinstance(target, ast.Name):
                    literals[target.id] = ast.literal_eval(node.value)
    return literals


def unmet() -> tuple[Unmet, ...]:
    """Returns the unsatisfied requirements of the packages of the stack.

    An optional dependency is compared only if it belongs to the stack and is installed.
    """
    unmet: dict[Unmet, None] = {}
    for package in STACK:
        for line in _requires(package):
            try:
                requirement = Requirement(line)
                needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
                compared = needed or (requirement.name in STACK and _is_optional(requirement))
            except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
                continue
            if not compared:
                continue
            installed = versions.installed(requirement.name)
            if (installed is None and needed) or (installed and not _satisfies(requirement, installed)):
                unmet[Unmet(package, f"{requirement.name}{requirement.specifier}", installed)] = None
    return tuple(unmet)


def _is_optional(requirement: Requirement) -> bool:
    marker = requirement.marker
    extras = re.findall(r"""extra == ["']([^"']+)""", str(marker))
    return any(marker is not None and marker.evaluate({"extra": extra}) for extra in extras)


def _requires(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except Exception:  # not installed, or unreadable metadata
        return []


def _satisfies(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version).public, prereleases=True)
    except InvalidVersion:
        return True  # unknown


def run_probe(what: str, seconds: float, environment: Mapping[str, str]) -> Probe:
    quiet = {name: value for name, value in environment.items() if name != "DSFIX_REPORT"}
    quiet["PYTHONFAULTHANDLER"] = "1"
    try:
        with open(probe.__file__, "rb") as program:
            answer = run_program([sys.executable, "-", what], seconds, quiet, program)
    except OSError as error:
        answer = ProgramOutput(problem=f"{probe.__file__} cannot be read: {error.strerror}")
    return read_probe(answer, tuple(probe.PARTS[what]))


def read_probe(answer: ProgramOutput, parts: tuple[str, ...]) -> Probe:
    """Parses a probe's output, complete or not."""
    facts: dict[str, Mapping[str, Any]] = {}
    errors: dict[str, str] = {}
    for line in answer.output.splitlines():
        try:
            report = json.loads(line)
            if "error" in report:
                errors[report["part"]] = first_line(str(report["error"]))
            else:
                facts[report["part"]] = dict(report["facts"])
        except (ValueError, KeyError, TypeError):
            continue
    left = [part for part in parts if part not in facts and part not in errors]
    if not left or "import" in errors:
        return Probe(facts, errors)
    why = answer.problem or f"the process exited with status {answer.status}"
    fatal = next((line for line in answer.errors.splitlines() if line.startswith("Fatal Python error")), "")
    last = first_line(fatal) or (first_line("\n".join(reversed(answer.errors.splitlines()))) if answer.status else "")
    return Probe(facts, errors, f"{why}: {last}" if last else why, left[0])


def read_report(report: str) -> dict[str, tuple[bool, bool]]:
    """Parses the table of ops in DeepSpeed's report: op -> (installed, compatible)."""
    rows = _OP.findall(_ESCAPES.sub("", report))
    return {op: (built == "YES", can == "OKAY") for op, built, can in rows if op != "deepspeed_not_implemented"}


def installed_at(distribution: str) -> float | None:
    """Returns when a distribution was installed, from the newest file of its metadata; None if unknown."""
    try:
        directory = getattr(metadata.distribution(distribution), "_path", None)
        return max(path.stat().st_mtime for path in Path(str(directory)).iterdir()) if directory else None
    except Exception:  # not installed, or unreadable metadata
        return None


def home(environment: Mapping[str, str]) -> Path | None:
    """Returns the home directory as os.path.expanduser does, or None."""
    if "HOME" in environment:
        return Path(environment["HOME"] or "/")
    try:
        import pwd

        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except (ImportError, KeyError):
        return None
