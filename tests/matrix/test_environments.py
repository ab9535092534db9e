"""DeepSpeed's releases are installed once and atomically; the index is a directory with one wheel."""

import importlib.metadata
import platform
import sys
import zipfile

import pytest

from dsfix.lab.distributions import TorchBuild
from matrix import environments, table

WHEEL = {
    "deepspeed/__init__.py": "__version__ = '1.2.0'\n",
    "deepspeed-1.2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: deepspeed\nVersion: 1.2.0\n"
    "Requires-Dist: pytest\n",
    "deepspeed-1.2.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "deepspeed-1.2.0.dist-info/RECORD": "",
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """dsfix's cache, with an index that has only deepspeed 1.2.0."""
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "deepspeed-1.2.0-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    settings = {"DSFIX_CACHE": "cache", "UV_CACHE_DIR": "uv", "UV_FIND_LINKS": "index"}
    for name, directory in settings.items():
        monkeypatch.setenv(name, str(tmp_path / directory))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setattr(environments, "torch_build", lambda: TorchBuild("2.13.0+cpu", tmp_path, None))
    return tmp_path / "cache" / "releases" / f"torch2.13.0+cpu-{sys.implementation.cache_tag}"


def test_a_missing_dependency_is_named(cache):
    path = environments.installed("1.2.0")
    described = path / "deepspeed-1.2.0.dist-info" / "METADATA"
    described.write_text(described.read_text() + "Requires-Dist: not-there>=1\nRequires-Dist: optional; extra == 'x'\n")
    with pytest.raises(environments.Unavailable, match=r"deepspeed 1\.2\.0 needs not-there, not installed"):
        environments.installed("1.2.0")


def test_a_failed_installation_is_one_sentence_and_leaves_nothing(cache):
    with pytest.raises(environments.Unavailable, match=r"^deepspeed 1\.3\.0 cannot be installed: \w.*1\.3\.0") as error:
        environments.installed("1.3.0")
    assert "\n" not in str(error.value)
    assert not (cache / "deepspeed-1.3.0").exists()


def test_environment_is_found_by_torch_and_python(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    python = ".".join(platform.python_version_tuple()[:2])
    known = [
        table.Environment(f"torch-{torch}-{minor}", minor, {"torch": torch})
        for torch in ("2.3.1", "2.13.0")
        for minor in ("3.99", python)
    ]
    releases = table.Table({each.name: each for each in known}, ())
    assert environments.current(releases) is known[-1]
    with pytest.raises(environments.Unavailable, match=r"not an environment of the table, which has Python 3\.99 with"):
        environments.current(table.Table({each.name: each for each in known[:-1]}, ()))
