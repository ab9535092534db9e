"""Sources are fetched completely, verified and laid out as if installed, or not at all."""

import os
from importlib import metadata

import pytest

from matrix import sdists


@pytest.fixture
def index(tmp_path, package_index):
    return sdists.Index(cache=tmp_path / "cache")


def cached(index):
    return sorted(path.name for path in index.cache.iterdir()) if index.cache.exists() else []


def test_python_files_are_laid_out_as_installed(index, package_index):
    package_index.offer(
        "0.14.2",
        {
            "deepspeed/runtime/engine.py": "engine",
            "deepspeed/readme.txt": "no code",
            "accelerator/abstract.py": "abstract",
            "op_builder/cpu/adam.py": "adam",
            "csrc/adam.cpp": "no Python",
            "tests/unit/test_it.py": "not installed",
            "setup.py": "not installed",
        },
    )
    root = index.sources("0.14.2")
    results = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}
    assert results == {
        "deepspeed/__init__.py": "__version__ = '0.14.2'\n",
        "deepspeed/runtime/engine.py": "engine",
        "deepspeed/accelerator/abstract.py": "abstract",
        "deepspeed/ops/op_builder/cpu/adam.py": "adam",
    }
    (described,) = metadata.distributions(name="deepspeed", path=[str(root)])
    assert described.version == "0.14.2"


def test_nothing_is_written_elsewhere(index, package_index, tmp_path):
    package_index.offer("0.14.2", {f"deepspeed/{'../' * 5}outside.py": "", "deepspeed/inside.py": ""})
    index.sources("0.14.2")
    assert [path.name for path in tmp_path.rglob("*side.py")] == ["inside.py"]


def test_yanked_releases_pre_releases_and_wheels_are_ignored(index, package_index):
    for version in ("0.14.10", "0.14.2", "0.15.0rc1", "0.15.0.dev3", "0.15.0.post1"):
        package_index.offer(version)
    package_index.offer("0.14.3", yanked=True)
    package_index.offer_file("deepspeed-0.16.0-py3-none-any.whl", b"")
    assert list(index.sdists) == ["0.14.2", "0.14.10"]
    with pytest.raises(sdists.Unavailable, match=r"0\.14\.3 is not on the package index"):
        index.sources("0.14.3")


def test_a_wrong_digest_is_refused_and_leaves_nothing(index, package_index):
    package_index.offer("0.14.2", hashes={"sha256": "0" * 64})
    with pytest.raises(sdists.Unavailable, match="digest"):
        index.sources("0.14.2")
    assert cached(index) == []


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (
            {"deepspeed.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.14.1\n"},
            "different version",
        ),
        (None, "is not available"),
    ],
)
def test_an_archive_that_is_not_that_release(index, package_index, files, why):
    if files is None:
        package_index.offer_file("deepspeed-0.14.2.tar.gz", b"no archive")
    else:
        package_index.offer("0.14.2", files)
    with pytest.raises(sdists.Unavailable, match=why):
        index.sources("0.14.2")
    assert cached(index) == []


def test_what_is_cached_needs_no_index(index, package_index, monkeypatch):
    package_index.offer("0.14.2")
    root = index.sources("0.14.2")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    assert sdists.Index(cache=index.cache).sources("0.14.2") == root


def test_the_index_is_the_one_that_pip_uses(tmp_path, monkeypatch):
    configuration = tmp_path / "pip.conf"
    configuration.write_text("[global]\nindex-url = https://pip.example/simple\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    assert sdists.index_url() == "https://pip.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://environment.example/simple")
    assert sdists.index_url() == "https://environment.example/simple"
