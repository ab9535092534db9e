"""Which release a patch is tested on: the newest of the table that it applies to, with this Python's packages."""

import importlib.metadata
import platform

from matrix import environments, proofs, table


class NoRelease(Exception):
    """The patch cannot apply with this Python and its packages; the message is the reason."""


def _versions(entry, release):
    """The versions of everything that the patch names, with that DeepSpeed."""
    versions = {"deepspeed": release, "python": platform.python_version()}
    for name in entry.patch.affects.keys() - versions.keys():
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def applies(entry, release):
    """Whether the patch applies to that release, with this Python's packages."""
    return proofs.inside(entry.patch, _versions(entry, release))


def newest(entry):
    """The newest release that the patch applies to here. Raises NoRelease."""
    try:
        releases = table.load().run_in(environments.current(table.load()).name)
    except environments.Unavailable as reason:
        raise NoRelease(str(reason)) from None
    for release in reversed(releases):
        if applies(entry, release.deepspeed):
            return release.deepspeed
    here = [f"{name} {version}" for name, version in _versions(entry, "any").items() if name != "deepspeed"]
    raise NoRelease(f"no release of the table is inside {dict(entry.patch.affects)} with {', '.join(here)}")


def applying(release, catalogue):
    """All patches that apply to the release."""
    return tuple(entry for entry in catalogue.values() if applies(entry, release))


def by_release(catalogue):
    """Each release that is the newest for some patch -> all patches that apply to it."""
    releases = []
    for entry in catalogue.values():
        try:
            releases.append(newest(entry))
        except NoRelease:
            continue
    return {release: applying(release, catalogue) for release in dict.fromkeys(releases)}
