"""A local package index that serves what the tests add to it; the stand-in matrix; where records are."""

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.matrix.stand_in import StandIn

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
