import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dsfix.lab.cuda import compiling
from dsfix.lab.distributions import LabUnavailable, TorchBuild, torch_build
from dsfix.settings import cache_directory

BUILD = "from dsfix.lab.cuda.compiling import library; print(library())"
COMPILER = """#!/bin/sh
echo compiling >> {log}
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiler(directory, text):
    path = directory / "compiler"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def supported():
    try:
        compiling.supported_torch()
    except LabUnavailable as error:
        pytest.skip(str(error))


def test_version_file_is_read_without_import(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.4.0+cu121'\ncuda: Optional[str] = '12.1'\nhip = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_build() == TorchBuild("2.4.0+cu121", tmp_path / "torch", "12.1")


def test_unsupported_machine(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(LabUnavailable, match=r"^the emulated CUDA device requires Linux x86-64, this is Darwin arm64$"):
        compiling.supported_torch()


@pytest.mark.usefixtures("cache", "supported")
class TestBuilding:
    def test_compiler_is_missing(self, monkeypatch):
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", "")
        with pytest.raises(LabUnavailable, match=r"device needs a C\+\+ compiler: g\+\+ not found$"):
            compiling.library()

    def test_python_headers_are_missing(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CXX", compiler(tmp_path, "#!/bin/sh\n"))
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
        with pytest.raises(LabUnavailable, match=r"needs Python's headers: .*Python\.h not found$"):
            compiling.library()

    def test_compiler_fails_and_leaves_nothing(self, cache, tmp_path, monkeypatch):
        monkeypatch.setenv("CXX", compiler(tmp_path, "#!/bin/sh\necho 'x.h:1: error: no such thing' >&2\nexit 1\n"))
        with pytest.raises(LabUnavailable, match=r"does not compile: x\.h:1: error: no such thing$"):
            compiling.library()
        assert [path.suffix for path in cache.iterdir()] == [".lock"]

    @pytest.mark.parametrize(
        ("kept", "sentence"),
        [
            ([], r"needs torch's headers, missing from .*torch$"),
            (["include/ATen/ATen.h"], r"device cannot be built in .*libc10\.so"),
        ],
    )
    def test_torch_is_half_installed(self, kept, sentence, tmp_path, monkeypatch):
        for each in kept:
            (tmp_path / "torch" / each).parent.mkdir(parents=True)
            (tmp_path / "torch" / each).touch()
        operators = tmp_path / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml"
        operators.parent.mkdir(parents=True)
        operators.touch()
        monkeypatch.setattr(compiling, "torch_build", lambda: TorchBuild("2.99.0", tmp_path / "torch", None))
        with pytest.raises(LabUnavailable, match=sentence):
            compiling.library()

    def test_cache_is_not_writable(self, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("DSFIX_CACHE", str(tmp_path / "file" / "below"))
        with pytest.raises(LabUnavailable, match="cannot be built in"):
            compiling.library()

    def test_two_processes_build_once(self, tmp_path):
        log = tmp_path / "log"
        variables = {**os.environ, "CXX": compiler(tmp_path, COMPILER.format(log=log))}
        command = [sys.executable, "-c", BUILD]
        processes = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in "ab"]
        first, second = (process.communicate(timeout=60)[0] for process in processes)
        assert first == second
        assert Path(first.strip()).read_text() == "library\n"
        assert log.read_text() == "compiling\n"


def test_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("DSFIX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == Path("/home/someone/.cache/dsfix")
    monkeypatch.setenv("DSFIX_CACHE", "")
    assert cache_directory() == Path("/home/someone/.cache/dsfix")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_directory() == Path("/cache/dsfix")
    monkeypatch.setenv("DSFIX_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
