"""The release of the table that a user names or has installed."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from .table import Table


class UnknownRelease(LookupError):
    """The table has no such release; the message says so in one sentence."""


def named(text: str, table: Table) -> Version:
    """The release that a user named. Raises UnknownRelease."""
    version = _within(text, table)
    if version > table.releases[-1]:
        raise UnknownRelease(
            f"deepspeed {version} is newer than {table.releases[-1]}, the newest that this dsfix knows"
        )
    if version not in table.releases:
        before = [release for release in table.releases if release < version][-1]
        raise UnknownRelease(f"deepspeed {version} is not a release; the one before it is {before}")
    return table.releases[table.releases.index(version)]


def installed(text: str, table: Table) -> tuple[Version, str]:
    """The installed version, which may be a development build, and a remark about it. Raises UnknownRelease."""
    version = _within(text, table)
    if version > table.releases[-1]:
        return version, f"newer than {table.releases[-1]}, the newest release in this table"
    if version.local or version not in table.releases:
        return version, "not a release: judged by its version number only"
    return version, ""


def _within(text: str, table: Table) -> Version:
    try:
        version = Version(text)
    except InvalidVersion:
        what = f"{text!r} is not a version of DeepSpeed" if text else "the installed DeepSpeed has no readable version"
        raise UnknownRelease(f"{what}, such as {table.releases[-1]}") from None
    if version < table.releases[0]:
        raise UnknownRelease(f"deepspeed {text} is older than {table.releases[0]}, the first that dsfix knows")
    return version
