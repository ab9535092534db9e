"""sdist and wheel of the checked-out commit, the same bytes each time: python tests/package/release.py DIRECTORY

They are built twice and compared, checked by twine, and installed in a fresh environment on each Python that is found.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
NOT_INSTALLED = 3  # exit status of `list` without DeepSpeed


def output(*command: object, cwd: Path, status: int = 0, **environment: str) -> str:
    """What a command prints; exits with its error output if its exit status differs."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(each) for each in command]
    done = subprocess.run(words, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != status:
        sys.exit(f"`{' '.join(words)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def build(directory: Path) -> list[Path]:
    """The sdist of HEAD, and the wheel made from it."""
    made = output("git", "log", "-1", "--format=%ct", cwd=CHECKOUT)
    source = directory / "source"
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", "HEAD"], cwd=CHECKOUT, stdout=archive, check=True)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tree:
            tree.extractall(source)
    builds = (sys.executable, "-m", "build", "--outdir", directory)
    output(*builds, "--sdist", source, cwd=directory, SOURCE_DATE_EPOCH=made)
    [sdist] = directory.glob("*.tar.gz")
    _date(sdist, int(made))
    with tarfile.open(sdist) as tree:
        tree.extractall(directory / "unpacked")
    [unpacked] = (directory / "unpacked").iterdir()
    output(*builds, "--wheel", unpacked, cwd=directory, SOURCE_DATE_EPOCH=made)
    return [sdist, *directory.glob("*.whl")]


def _date(sdist: Path, made: int) -> None:
    """Rewrites it with one time and no owner: setuptools takes them from the files that it has just written."""
    content = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = made, 0, 0, "", ""
            member.mode, member.pax_headers = (0o755 if member.isdir() or member.mode & 0o100 else 0o644), {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(content.getvalue(), mtime=made))


def try_out(file: Path) -> list[str]:
    """Installs it on each Python that is found, outside the checkout; the versions of these."""
    results = []
    for version in PYTHONS:
        with tempfile.TemporaryDirectory() as name:
            directory, environment = Path(name), Path(name, "environment")
            where = subprocess.run(["uv", "python", "find", "--no-project", version], capture_output=True, text=True)
            if where.returncode:
                continue
            output("uv", "venv", "--python", where.stdout.strip(), environment, cwd=directory)
            python = environment / "bin" / "python"
            output("uv", "pip", "install", "--python", python, file, cwd=directory)
            result = output(python, "-m", "dsfix", "--version", cwd=directory)
            if f"dsfix {_version()}," not in result:
                sys.exit(f"installed from {file.name}, Python {version} has {result}")
            output(python, "-m", "dsfix", "list", cwd=directory, status=NOT_INSTALLED)
            results.append(version)
    return results


def _version() -> str:
    text = output("git", "show", "HEAD:dsfix/__init__.py", cwd=CHECKOUT)
    return re.findall(r'(?m)^__version__ = "(.+)"$', text)[0]


def _section() -> None:
    """Exits unless the changelog starts with this version: unreleased, or a version and its day."""
    heading = re.findall(r"(?m)^## (.+)$", output("git", "show", "HEAD:CHANGELOG.md", cwd=CHECKOUT))[0]
    wanted = "Unreleased" if ".dev" in _version() else rf"{re.escape(_version())} \(\d{{4}}-\d\d-\d\d\)"
    if not re.fullmatch(wanted, heading):
        sys.exit(f"dsfix is {_version()}, and CHANGELOG.md begins with {heading}")


def main() -> None:
    [target] = sys.argv[1:] or ["dist"]
    _section()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        files, again = build(Path(one)), build(Path(other))
        for first, second in zip(files, again):
            if first.read_bytes() != second.read_bytes():
                sys.exit(f"{first.name} is not the same when it is built again")
        output(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=CHECKOUT)
        pythons = {file.name: try_out(file) for file in files}
        Path(target).mkdir(exist_ok=True)
        for file in files:
            Path(target, file.name).write_bytes(file.read_bytes())
    for name, versions in pythons.items():
        if not versions:
            sys.exit(f"no Python of {', '.join(PYTHONS)} was found to install {name}")
        print(f"{name}: built twice with the same bytes; installed on Python {', '.join(versions)}")


if __name__ == "__main__":
    main()
