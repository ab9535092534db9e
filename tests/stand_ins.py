"""Fixtures: stand-ins for DeepSpeed and for the catalogue, in this process (`bench`) or in a fresh one (`world`); a
stand-in for an installed DeepSpeed, and the dsfix command line run with it (`environment`).

A pytest plug-in of all tests. Imports dsfix only in fixtures: tests/package runs where it is not installed.
"""

from __future__ import annotations

import compileall
import importlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.processes import ended

if TYPE_CHECKING:
    from dsfix.engine.engine import Engine
    from dsfix.patch import Patch

_numbers = itertools.count(1)


def declare(*changes, **fields) -> Patch:
    """A Patch with these changes and with defaults for all other fields."""
    from dsfix.patch import Patch, Severity

    given = {"title": "a stand-in", "severity": Severity.CRASH, "affects": {"python": ">=3"}, "symptom": "x"}
    return Patch(changes=changes, **{**given, **fields})


class Bench:
    """Modules and engines in this process, removed at the end of the test."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.monkeypatch = path, monkeypatch
        self.engines: list[Engine] = []
        self.names: list[str] = []
        monkeypatch.syspath_prepend(str(path))

    def write(self, text: str, name: str = "", encoding: str = "utf-8") -> str:
        """Writes a module; returns its name, which is new by default."""
        name = name or f"standin_{next(_numbers)}"
        file = self.path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(textwrap.dedent(text).encode(encoding))
        importlib.invalidate_caches()
        self.names.append(name.partition(".")[0])
        return name

    def module(self, text: str, name: str = "", encoding: str = "utf-8") -> ModuleType:
        return importlib.import_module(self.write(text, name, encoding))

    def engine(self, *patches: Patch, first: int = 0, broken: tuple = (), **environment: str) -> Engine:
        """An activated engine with the patches p0, p1, …, or from p`first` on."""
        from dsfix.catalogue import registry
        from dsfix.engine.engine import Engine
        from dsfix.settings import Settings

        ids = [f"p{first + number}" for number in range(len(patches))]
        entries = {id: registry.Entry(id, patch, ModuleType(id)) for id, patch in zip(ids, patches)}
        summaries = {id: entry.summary for id, entry in entries.items()}
        self.monkeypatch.setattr(registry, "index", lambda remember: (summaries, broken))
        self.monkeypatch.setattr(registry, "entry", lambda summary: entries[summary.id])
        engine = Engine(Settings.read(environment))
        self.engines.append(engine)
        engine.activate()
        return engine

    def apply(self, *patches: Patch, first: int = 0) -> Engine:
        """Like `engine`; asserts that all patches are applied."""
        from dsfix.outcome import Outcome

        engine = self.engine(*patches, first=first)
        engine.refresh()
        assert {id: (s.outcome, s.reason) for id, s in engine.states.items() if s.outcome is not Outcome.APPLIED} == {}
        return engine

    def close(self) -> None:
        for engine in self.engines:
            for id in engine.states:
                engine.revert(id)
            engine.finder.stop()
        for name in [n for n in sys.modules if n.partition(".")[0] in self.names]:
            del sys.modules[name]


@pytest.fixture
def cold_cache(tmp_path, monkeypatch):
    """This process, and those that it starts, have an empty cache."""
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bench(tmp_path, monkeypatch, cold_cache):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("_DSFIX_ANNOUNCED", "1")
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture(name="declare", scope="session")
def _declare():
    return declare


_SCENARIO = '''
"""Imported by the scripts of the tests."""
import json, sys

def tell(value):
    print(json.dumps(value))

def outcomes():
    import dsfix
    return {each.id: each.outcome.value for each in dsfix.report()}

def reasons():
    import dsfix
    return {each.id: each.reason for each in dsfix.report()}
'''

_PATCH = """
from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Provide, Replace, Severity, Source

def Wrap(target, wrapper):
    def wrap(original):
        import wrapt

        return wrapt.FunctionWrapper(original, wrapper)

    return Replace(target, wrap)

def declare(*changes, **fields):
    given = dict(title="a stand-in", severity=Severity.CRASH, affects={"deepspeed": ">=1"}, symptom="x")
    return Patch(changes=changes, **{**given, **fields})

"""


@pytest.fixture(scope="session")
def runtime(tmp_path_factory):
    """A directory with the installed dsfix; its catalogue is the directory named in STANDIN_PATCHES."""
    spec = importlib.util.find_spec("dsfix")
    here = tmp_path_factory.mktemp("runtime")
    (here / "dsfix" / "patches").mkdir(parents=True)
    for file in Path(spec.origin).parent.glob("*.py"):
        shutil.copy(file, here / "dsfix")
    for package in ("catalogue", "check", "doctor", "engine", "guards", "process"):
        shutil.copytree(Path(spec.origin).parent / package, here / "dsfix" / package)
    versions = here / "dsfix" / "versions.py"  # 1.0 of the stand-in must not be newer than proven
    versions.write_text(
        re.sub(r'NEWEST_PROVEN = Version\(".*"\)', 'NEWEST_PROVEN = Version("1.0")', versions.read_text())
    )
    (here / "dsfix" / "patches" / "__init__.py").write_text("import os\n__path__ = [os.environ['STANDIN_PATCHES']]\n")
    (here / "scenario.py").write_text(_SCENARIO)
    compileall.compile_dir(here, quiet=2)
    return here


@dataclass(frozen=True)
class ScriptResult:
    """The output of a script: `value` is what it passed to tell, `log` are dsfix's lines on standard error."""

    code: int
    out: str
    err: str

    @property
    def value(self):
        return json.loads(self.out.splitlines()[-1])

    @property
    def log(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("[dsfix]")]

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.log if "WARNING" in line]


class World:
    """The packages and the catalogue of fresh processes."""

    def __init__(self, path: Path, runtime: Path) -> None:
        self.path, self.runtime = path, runtime
        self.site, self.patches = path / "site", path / "patches"
        self.site.mkdir()
        self.patches.mkdir()

    def package(self, version="1.0", name="deepspeed", metadata=True, **modules: str) -> None:
        """Installs a package. modules: name -> text, ``init`` for the package itself, ``a__b`` for its module a.b."""
        self.module(f"{name}.__init__", modules.pop("init", ""))
        for part, text in modules.items():
            inner = part.split("__")
            for depth in range(1, len(inner)):
                (self.site.joinpath(name, *inner[:depth])).mkdir(exist_ok=True)
                self.site.joinpath(name, *inner[:depth], "__init__.py").touch()
            self.module(".".join((name, *inner)), text)
        if metadata:
            self.metadata(name, version)

    def metadata(self, name: str, version) -> None:
        info = self.site / f"{name}-0.dist-info"
        info.mkdir()
        given = "" if version is None else f"Version: {version}\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{given}")

    def module(self, name: str, text: str) -> Path:
        file = self.site.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    def patch(self, id: str, text: str) -> None:
        (self.patches / f"{id}.py").write_text(_PATCH + textwrap.dedent(text))

    def plugin(self, distribution: str, value: str, **patches: str) -> None:
        """Installs a distribution with one entry point, the package `value`; `patches` are its modules."""
        info = self.site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dsfix.patches]\npatches = {value}\n")
        for name, text in {"__init__": "", **patches}.items():
            self.module(f"{value}.{name}", text if name == "__init__" else _PATCH + textwrap.dedent(text))

    def python(self, *arguments, **environment: str) -> ScriptResult:
        """Runs Python in a fresh process, to its end."""
        mine = ("DSFIX", "_DSFIX", "PYTHON", "RANK", "LOCAL_RANK", "SLURM", "OMPI", "PMI", "COV_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        own = {
            "PYTHONPATH": os.pathsep.join(map(str, (self.site, self.runtime))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DSFIX_CACHE": str(self.path / "cache"),
            "STANDIN_PATCHES": str(self.patches),
        }
        done = ended([sys.executable, *arguments], self.path, {**inherited, **own, **environment}, timeout=300)
        return ScriptResult(done.returncode, done.stdout, done.stderr)

    def run(self, script: str, code: int = 0, python: tuple = (), **environment: str) -> ScriptResult:
        """Runs a script in a fresh process; asserts that it exits with `code`."""
        result = self.python(*python, "-c", "from scenario import *\n" + textwrap.dedent(script), **environment)
        assert result.code == code, result.out + result.err
        return result


@pytest.fixture
def world(tmp_path, runtime):
    return World(tmp_path, runtime)


FLAW = "def f(x):\n    y = x + 1\n    return y\n"
CURE = """PATCH = declare(Edit("deepspeed.m:f", replace="y = x + 1", code="y = x + 2"))"""


@pytest.fixture
def simple(world):
    """deepspeed.m.f adds one instead of two; the patch `cure` fixes it."""
    world.package(m=FLAW)
    world.patch("cure", CURE)
    return world


# the few statements that zero3_offload_clip_device edits
STAGE3 = """\
class DeepSpeedZeroOptimizer_Stage3:

    def step(self, closure=None):
        norm_groups = self._get_norm_groups()
        scaled_global_grad_norm = torch.norm(torch.stack(norm_groups))

    def unscale_and_clip_grads(self, sub_group_id, total_norm):
        combined_scale = self.loss_scale
        if self.clip_grad > 0.:
            clip = total_norm / self.clip_grad
            if clip > 1:
                combined_scale = clip * self.loss_scale

        return combined_scale
"""


class Environment:
    """A directory on PYTHONPATH that contains the stand-in; commands run in it."""

    def __init__(self, directory):
        self.directory = directory
        self.stage3 = directory / "deepspeed" / "runtime" / "zero" / "stage3.py"

    def install(self, version="0.14.2", stage3=STAGE3):
        self.stage3.parent.mkdir(parents=True)
        for package in (self.stage3.parent, self.stage3.parent.parent, self.stage3.parent.parent.parent):
            # a command that imports DeepSpeed fails
            (package / "__init__.py").write_text("raise SystemExit('imported')\n")
        (self.directory / "torch.py").write_text("raise SystemExit('imported')\n")
        self.stage3.write_text(stage3)
        self.register(version)
        return self

    def register(self, version="0.14.2"):
        metadata = self.directory / f"deepspeed-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n")

    def variables(self, **variables):
        # COLUMNS: output is as wide as without a terminal
        mine = ("DSFIX_", "COLUMNS")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        # DSFIX_ONLY: other patches depend on whether torch and NumPy are installed
        environment["DSFIX_ONLY"] = "zero3_offload_clip_device"
        return {**environment, **variables, "PYTHONPATH": str(self.directory)}

    def start(self, *arguments, code="", **variables):
        """Starts `python -m dsfix ARGUMENTS`, or `python -c CODE`."""
        return subprocess.Popen(
            [sys.executable, *(["-c", code] if code else ["-m", "dsfix", *map(str, arguments)])],
            env=self.variables(**variables),
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def shell(self, command, **variables):
        """Runs a shell command to its end."""
        return ended(["sh", "-c", command], self.directory, self.variables(**variables))

    def dsfix(self, *arguments, **variables):
        """Runs `python -m dsfix ARGUMENTS` to its end."""
        process = self.start(*arguments, **variables)
        stdout, stderr = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path)


@pytest.fixture
def base_python():
    """The Python outside virtual environments, which has a user site directory."""
    return os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info))
