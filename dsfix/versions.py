"""The version gate: which releases of which distributions a patch is for."""

from __future__ import annotations

import enum
import functools
import json
import os
import platform
import re
import sys
import zipimport
from collections.abc import Mapping
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any, Callable, NamedTuple

from packaging.version import InvalidVersion, Version

EARLIEST_PROVEN = "0.12.0"
NEWEST_PROVEN = Version("0.19.8")
"""The newest DeepSpeed that the patches were run on; `python -m matrix add` updates it."""
_VERSION = re.compile("^Version:(.*)", re.IGNORECASE | re.MULTILINE)


class RangeMatch(enum.Enum):
    INSIDE = "inside"
    OUTSIDE = "outside"
    UNSURE = "unsure"  # a development build, a fork: its source decides


class Gate(NamedTuple):
    """near: whether a build judged by its source is in the range by version number. newer: whether the release is in it
    and newer than any that the patches were run on."""

    fit: RangeMatch
    reason: str
    near: bool = False
    newer: bool = False


@functools.cache
def installed(distribution: str) -> str | None:
    """The version of the package that would be imported, from its metadata; "" if it has none, None if absent."""
    _deepspeed_file()
    if distribution == "python":
        return platform.python_version()
    try:
        distributions = list(metadata.distributions(name=distribution))
        records = [each for each in distributions if distribution != "deepspeed" or _describes_what_is_imported(each)]
        if not records:
            return "" if distributions or module_file(distribution) else None
        # an interrupted upgrade leaves two, and nothing shows which of them belongs to the package present
        same_place = [record for record in records if str(record.locate_file("")) == str(records[0].locate_file(""))]
        version = " and ".join(sorted(set(map(_recorded_version, same_place))))
    except Exception:  # metadata that cannot be read is no metadata
        return ""
    return version


@functools.cache
def _deepspeed_file() -> str | None:
    """The location of the DeepSpeed that `installed` describes."""
    return module_file("deepspeed")


def path_changed() -> bool:
    """Whether a changed sys.path leads to a different DeepSpeed than at the last call; if so, its version is reread."""
    before = _deepspeed_file()
    _deepspeed_file.cache_clear()
    if before == _deepspeed_file():
        return False
    installed.cache_clear()
    return True


def _recorded_version(found: metadata.Distribution) -> str:
    """Reads only the header: `Distribution.version` parses the whole README below it, which takes ten times as long."""
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or found.read_text("") or ""
    header = _VERSION.search(text.partition("\n\n")[0])
    return header.group(1).strip() if header else ""


def module_file(name: str) -> str | None:
    """The file that `import name` would execute, or None; runs no code of the package."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    walked, _, rest = name.partition(".")
    try:
        spec: ModuleSpec | None = find_spec(walked)
        for part in rest.split(".") if rest else ():
            if spec is None or spec.submodule_search_locations is None:
                return None
            walked = f"{walked}.{part}"
            spec = PathFinder.find_spec(walked, list(spec.submodule_search_locations))
    except (ImportError, ValueError, KeyError):  # KeyError: a namespace package whose parent has to be imported first
        return None
    return spec.origin if spec is not None and spec.has_location else None


def read_file(path: str) -> bytes:
    """The content of a file, also in a zip archive. Raises OSError or ImportError."""
    if not os.path.exists(path):
        return zipimport.zipimporter(os.path.dirname(path)).get_data(path)
    with open(path, "rb") as file:
        return file.read()


def nearest_existing(path: str) -> str:
    """The file of that path, or the zip archive that contains it, or the nearest existing directory."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _describes_what_is_imported(found: metadata.Distribution) -> bool:
    """False if another DeepSpeed, earlier on sys.path, shadows the one that the metadata describes."""
    origin = _deepspeed_file()
    if origin is None:
        return True  # half installed: the verdict says so
    home = os.path.realpath(os.path.dirname(origin))
    if home == os.path.realpath(str(found.locate_file("deepspeed"))):
        return True
    recorded = json.loads(found.read_text("direct_url.json") or "{}")
    if not recorded.get("dir_info", {}).get("editable"):
        return False
    from urllib.request import url2pathname

    source = os.path.realpath(url2pathname(recorded["url"].partition("://")[2]))
    return home.startswith(os.path.join(source, ""))


def versions_text(*distributions: str) -> str:
    """The installed ones with their versions, for messages."""
    present = {name: installed(name) for name in distributions if installed(name) is not None}
    return ", ".join(f"{name} {version or 'of unknown version'}" for name, version in present.items())


@functools.cache
def satisfies(specifiers: str, version: str) -> bool:
    """Whether the version is valid and in the range; its local part is ignored."""
    from packaging.specifiers import SpecifierSet  # takes 1 to 2 % of `import deepspeed`, which may not need it

    try:
        # packaging 24 and 26 differ without prereleases=True
        return SpecifierSet(specifiers).contains(Version(version).public, prereleases=True)
    except InvalidVersion:
        return False


def gate(
    affects: Mapping[str, str], remember: Callable[[object, Callable[[], Any]], Any] = lambda key, make: make()
) -> Gate:
    """Compares every distribution in `affects` (see Patch) with what is installed.

    remember: returns for a key what it returned for the same key before, else what the function returns.
    """
    numbers = tuple((name, specifiers, installed(name)) for name, specifiers in affects.items())
    fit, *rest = remember(numbers, lambda: ((gate := _gate(affects)).fit.value, *gate[1:]))
    return Gate(RangeMatch(fit), *rest)


def _gate(affects: Mapping[str, str]) -> Gate:
    unsure: Gate | None = None
    for distribution, specifiers in affects.items():
        version = installed(distribution)
        if version is None:
            return Gate(RangeMatch.OUTSIDE, f"{distribution} is not installed")
        one = _compare(distribution, version, specifiers)
        if one.fit is RangeMatch.OUTSIDE:
            return one
        if one.fit is RangeMatch.UNSURE or one.newer:
            unsure = one
    return unsure or Gate(RangeMatch.INSIDE, ", ".join(f"{d} {installed(d)}" for d in affects))


_parsed = functools.cache(Version)


def _compare(distribution: str, text: str, specifiers: str) -> Gate:
    from packaging.specifiers import SpecifierSet

    judged_by_source = distribution == "deepspeed"
    try:
        version = _parsed(text)
    except InvalidVersion:
        what = f"{distribution} reports the version {text!r}" if text else f"{distribution} reports no version"
        return Gate(RangeMatch.UNSURE if judged_by_source else RangeMatch.OUTSIDE, what)
    inside = satisfies(specifiers, text)
    newer = judged_by_source and inside and _parsed(version.public) > NEWEST_PROVEN
    what = f"{distribution} {text}" + (f" is newer than proven ({NEWEST_PROVEN})" if newer else "")
    if judged_by_source and (version.local or version.is_prerelease):
        return Gate(RangeMatch.UNSURE, what if newer else f"{what} is not a release", near=inside, newer=newer)
    if not inside:
        return Gate(RangeMatch.OUTSIDE, f"{what} is outside {SpecifierSet(specifiers)}")
    return Gate(RangeMatch.INSIDE, what, newer=newer)
