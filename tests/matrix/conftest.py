"""A local package index that serves what the tests add to it; the stand-in matrix; where records are."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from matrix import proofs

MADE = 1700000000  # 2023-11-14
METADATA = """Metadata-Version: 2.1
Name: deepspeed
Version: {}
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Python :: 3.10
Classifier: Programming Language :: Python :: 3.9
"""
REQUIRES = "numpy\ntorch>=2.0.0\npydantic>=2.0.0\n\n[dev]\ntorch>=9\n"


class PackageIndex:
    """Serves a project page and its files; empty at first."""

    def __init__(self, url):
        self.url = url
        self.files = {}
        self.links = []

    def offer(self, version, files=None, **link):
        """Add an sdist of that version. files: in addition to its metadata. link: attributes on the project page."""
        name = f"deepspeed-{version}"
        contents = {
            "deepspeed.egg-info/PKG-INFO": METADATA.format(version),
            "deepspeed.egg-info/requires.txt": REQUIRES,
            "deepspeed/__init__.py": f"__version__ = {version!r}\n",
            **(files or {}),
        }
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w:gz") as archive:
            for path, text in contents.items():
                member = tarfile.TarInfo(f"{name}/{path}")
                member.size, member.mtime = len(text.encode()), MADE
                archive.addfile(member, io.BytesIO(text.encode()))
        self.offer_file(f"{name}.tar.gz", written.getvalue(), **link)

    def offer_file(self, name, content, **link):
        self.files[name] = content
        digest = hashlib.sha256(content).hexdigest()
        self.links = [each for each in self.links if each["filename"] != name]
        self.links.append({"filename": name, "url": f"{self.url}files/{name}", "hashes": {"sha256": digest}, **link})

    def page(self):
        rows = [
            f'<a href="{link["url"]}#sha256={link["hashes"]["sha256"]}"{" data-yanked" * link.get("yanked", False)}>'
            f"{link['filename']}</a>"
            for link in self.links
        ]
        return f"<!DOCTYPE html><html><body>{''.join(rows)}</body></html>".encode()

    def answer(self, path):
        """Status, content type and body."""
        if path == "/deepspeed/" and self.links:
            return 200, "text/html", self.page()
        name = path.removeprefix("/files/")
        return (200, "application/gzip", self.files[name]) if name in self.files else (404, "text/plain", b"")


@pytest.fixture
def package_index(monkeypatch):
    """An empty index, to which PIP_INDEX_URL points."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, kind, body = offered.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        offered = PackageIndex(f"http://127.0.0.1:{server.server_address[1]}/")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", offered.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield offered
        server.shutdown()
        thread.join()


@pytest.fixture
def stand_in(tmp_path, dsfix_in):
    """`python -m matrix` on stand-in releases with a stand-in catalogue."""
    dsfix_in(tmp_path)
    return StandIn(tmp_path)


@pytest.fixture
def records_in(monkeypatch):
    """Makes a module of records, `records`, read and write in a directory."""

    def use(module, directory):
        monkeypatch.setattr(module, "DIRECTORY", directory)
        for name in {"path", "load", "load_all", "save"} & {*vars(module)}:
            monkeypatch.setattr(getattr(module, name), "__defaults__", (directory,))

    return use


MATRIX = Path(proofs.__file__).parent
PYTHON = ".".join(map(str, sys.version_info[:2]))
PATCH = '''
"""A bug of the standard library, for the test."""
import colorsys, os, sys
from importlib import metadata
from packaging.specifiers import SpecifierSet
from dsfix.patch import BugPresent, CannotTell, Patch, Provide, Severity

preloaded = "torch" in sys.modules
PATCH = Patch(
    title="no name", severity=Severity.CRASH, affects={{"deepspeed": "{claimed}"}}, symptom="x",
    changes=(Provide("{module}", "{name}", lambda module: 1),), device="{device}",
)

def reproduce(lab):
    release = metadata.version("deepspeed")
    {body}
    missing = not hasattr(sys.modules["{module}"], "{name}")
    if release in SpecifierSet("{bug}") and missing:
        raise BugPresent("the name is missing in /a/path/file.py")
    return "preloaded" if preloaded else "fresh"
'''


class StandIn:
    """`python -m matrix` in `root`, which contains dsfix: releases 0.0.0 to 0.4.0; 0.2.0 and 0.3.0 have every bug."""

    releases = ("0.0.0", "0.1.0", "0.2.0", "0.3.0", "0.4.0")

    def __init__(self, root):
        self.root = root
        for package in ("matrix", "torch/_inductor", "torch/utils", "numpy", "elsewhere"):
            (root / package).mkdir(parents=True)
        for path in MATRIX.iterdir():
            if path.name not in ("proofs", "releases.json", "__main__.py", "__pycache__"):
                (root / "matrix" / path.name).symlink_to(path)
        for name in ("__init__", "_dynamo", "_inductor/__init__", "_inductor/compile_fx", "utils/__init__"):
            (root / "torch" / f"{name}.py").touch()
        (root / "torch" / "utils" / "cpp_extension.py").touch()
        (root / "torch" / "version.py").write_text("__version__ = '9.9.9'\n")
        (root / "numpy" / "__init__.py").write_text("from . import random\n")
        (root / "numpy" / "random.py").write_text("def seed(): pass\n")
        self._metadata(root, "torch", "9.9.9")
        self.shelf = root / "cache" / "releases" / f"torch9.9.9-{sys.implementation.cache_tag}"
        for release in self.releases:
            self._metadata(self.shelf / f"deepspeed-{release}", "deepspeed", release)
        self.table("9.9.9", self.releases)

    @staticmethod
    def _metadata(directory, name, version):
        information = directory / f"{name}-{version}.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def table(self, torch, releases):
        """Write a table with one environment, "here"."""
        row = {"released": "", "requires": {}, "pythons": [], "sampled": False}
        rows = [{"deepspeed": release, **row} for release in releases]
        environments = {"here": {"python": PYTHON, "torch": torch}}
        text = json.dumps({"environments": environments, "releases": rows})
        (self.root / "matrix" / "releases.json").write_text(text)

    def patch(self, name, claimed=">=0.2,<0.4", bug=">=0.2,<0.4", body="", module="colorsys", device="cpu"):
        text = PATCH.format(name=name, claimed=claimed, bug=bug, body=body, module=module, device=device)
        (self.root / "dsfix" / "patches" / f"{name}.py").write_text(text)

    def start(self, command, *arguments):
        program = (
            f"import argparse, sys; from matrix import {command}\n"
            "from dsfix.cli.exits import CommandError\n"
            f"parser = argparse.ArgumentParser(); {command}.add_arguments(parser)\n"
            f"try: sys.exit({command}.run(parser.parse_args()))\n"
            "except CommandError as complaint: print(complaint, file=sys.stderr); sys.exit(complaint.status)"
        )
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={
                **{name: value for name, value in os.environ.items() if not name.endswith("_FIND_LINKS")},
                "PYTHONPATH": str(self.root),
                "DSFIX_CACHE": str(self.root / "cache"),
                "UV_OFFLINE": "1",
                "UV_CACHE_DIR": str(self.root / "uv"),
            },
            cwd=self.root / "elsewhere",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def matrix(self, command, *arguments):
        process = self.start(command, *arguments)
        stdout, stderr = process.communicate(timeout=300)
        return subprocess.CompletedProcess([], process.returncode, stdout, stderr)

    def record(self, patch_id):
        """release -> cell, as recorded."""
        [sections] = map(proofs.sections, (self.root / "matrix" / "proofs").glob("*.txt"))
        return proofs.read(sections[patch_id])["here"]
