"""The sources of DeepSpeed's releases from the package index: verified, unpacked as if installed, cached."""

from __future__ import annotations

import datetime
import functools
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import requests
from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    DigestMismatchError,
    DistributionPackage,
    NoDigestsError,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)

from dsfix.settings import cache_directory

PROJECT = "deepspeed"
METADATA = "deepspeed.egg-info"
# where setup.py installs things; the .py files match an installation except for git_version_info_installed.py
_PLACES = {
    "deepspeed": "deepspeed",
    "accelerator": "deepspeed/accelerator",
    "op_builder": "deepspeed/ops/op_builder",
    METADATA: METADATA,
}
_TIMEOUT = 60  # seconds without data
_PYTHON = "Programming Language :: Python :: "


class Unavailable(Exception):
    """The index, or a release on it, is not available; the message is one sentence."""


# ValueError: malformed addresses, names, versions and texts
_NO_INDEX = (requests.RequestException, UnsupportedContentTypeError, UnsupportedRepoVersionError, ValueError)
_NO_SDIST = (requests.RequestException, NoDigestsError, tarfile.TarError, EOFError, OSError, ValueError)


@dataclass(frozen=True)
class EnvironmentFacts:
    """A release's metadata. released: YYYY-MM-DD; requires: distribution -> specifiers, without extras."""

    released: str
    requires: dict[str, str]
    pythons: tuple[str, ...]


class Index:
    """The package index that pip uses here. Thread-safe; requests are made when first needed."""

    def __init__(self, url: str | None = None, cache: Path | None = None) -> None:
        self.cache = cache or cache_directory() / "sdists"
        self._url = url
        self._lock = threading.Lock()

    @functools.cached_property
    def _client(self) -> PyPISimple:
        client = PyPISimple(self._url or index_url())
        if certificates := os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE"):
            client.s.verify = certificates
        return client

    @functools.cached_property
    def sdists(self) -> dict[str, DistributionPackage]:
        """Final, non-yanked release -> its sdist, ordered by version. Raises Unavailable."""
        try:
            page = self._client.get_project_page(PROJECT, timeout=_TIMEOUT)
        except NoSuchProjectError:
            raise Unavailable(f"the package index has no project {PROJECT}") from None
        except _NO_INDEX as error:
            raise Unavailable(f"the package index is not available: {_reason(error)}") from None
        packages = {}
        for package in page.packages:
            try:
                version = Version(package.version or "")
            except InvalidVersion:
                continue
            final = not (version.is_prerelease or version.is_postrelease or version.local)
            if package.package_type == "sdist" and final and not package.is_yanked:
                packages[version] = package
        return {str(version): packages[version] for version in sorted(packages)}

    def sources(self, release: str) -> Path:
        """A directory for PYTHONPATH with the release's .py files as installed and its metadata. Raises Unavailable."""
        directory = self.cache / release
        if directory.is_dir():
            return directory
        with self._lock:
            if directory.is_dir():
                return directory
            package = self.sdists.get(release)
            if package is None:
                raise Unavailable(f"deepspeed {release} is not on the package index as a final release with an sdist")
            try:
                self._fetch(package, release, directory)
            except _NO_SDIST as error:
                raise Unavailable(f"the sdist of deepspeed {release} is not available: {_reason(error)}") from None
            except DigestMismatchError:
                raise Unavailable(
                    f"the sdist of deepspeed {release} does not have the digest that the index gives"
                ) from None
        return directory

    def _fetch(self, package: DistributionPackage, release: str, directory: Path) -> None:
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.cache) as temporary:
            archive, unpacked = Path(temporary, "sdist.tar.gz"), Path(temporary, "sources")
            self._client.download_package(package, archive, timeout=_TIMEOUT)
            _unpack(archive, unpacked)
            if str(_described(unpacked).version) != release:
                raise tarfile.TarError("its metadata has a different version")
            try:
                os.replace(unpacked, directory)
            except OSError:
                if not directory.is_dir():  # otherwise a different process was faster
                    raise

    def facts(self, release: str) -> EnvironmentFacts:
        """The release's metadata. Raises Unavailable."""
        directory = self.sources(release)
        try:
            return self._facts(release, directory)
        except ValueError as error:
            raise Unavailable(f"the metadata of deepspeed {release} cannot be read: {_reason(error)}") from None

    def _facts(self, release: str, directory: Path) -> EnvironmentFacts:
        described = _described(directory)
        requirements = map(Requirement, described.requires or ())
        released = self.sdists[release].upload_time if release in self.sdists else None
        if released is None:  # not every index gives it; the archive was created minutes before the upload
            made = (directory / METADATA / "PKG-INFO").stat().st_mtime
            released = datetime.datetime.fromtimestamp(made, datetime.timezone.utc)
        classifiers = described.metadata.get_all("Classifier", [])
        pythons = {
            classifier.removeprefix(_PYTHON) for classifier in classifiers if classifier.startswith(f"{_PYTHON}3.")
        }
        return EnvironmentFacts(
            released=released.strftime("%Y-%m-%d"),
            requires={
                requirement.name: str(requirement.specifier)
                for requirement in requirements
                if requirement.marker is None
            },
            pythons=tuple(sorted(pythons, key=Version)),
        )


def index_url() -> str:
    """PIP_INDEX_URL, else pip's configured index, else PyPI."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False)
    return configured.stdout.strip() or PYPI_SIMPLE_ENDPOINT


def _described(directory: Path) -> metadata.Distribution:
    return metadata.Distribution.at(directory / METADATA)


def _unpack(archive: Path, directory: Path) -> None:
    """Extract the .py files and the metadata, with their modification times."""
    with tarfile.open(archive) as members:
        for member, place in _wanted(members):
            path = directory / place
            path.parent.mkdir(parents=True, exist_ok=True)
            content = members.extractfile(member)
            assert content is not None
            path.write_bytes(content.read())
            os.utime(path, (member.mtime, member.mtime))
    if not (directory / METADATA / "PKG-INFO").is_file():
        raise tarfile.TarError("it has no metadata")


def _wanted(members: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    for member in members:
        _, top, *rest = (*PurePosixPath(member.name).parts, "", "")
        rest = [part for part in rest if part]
        keep = member.isfile() and top in _PLACES and (top == METADATA or member.name.endswith(".py"))
        if keep and rest and ".." not in rest:
            yield member, "/".join((_PLACES[top], *rest))


def _reason(error: BaseException) -> str:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return f"no answer in {_TIMEOUT} s"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return (str(error).splitlines() or [type(error).__name__])[0]
