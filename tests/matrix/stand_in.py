"""A stand-in matrix: the real tools and processes, with stand-in releases, patches and torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

from matrix import proofs

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
        return proofs.read((self.root / "matrix" / "proofs" / f"{patch_id}.txt").read_text(encoding="utf-8"))["here"]
