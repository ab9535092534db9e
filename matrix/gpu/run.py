"""Run this folder on this machine, with its GPU, its torch and no package index, and write the results as JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
_MAIN = "import sys; from matrix.gpu.session import main; sys.exit(main(*sys.argv[1:]))"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=500.0, help="time limit (default: 500)")
    parser.add_argument("--out", type=Path, default=Path("result.json"), help="default: result.json")
    options = parser.parse_args()
    until = time.time() + options.seconds
    work = Path(tempfile.mkdtemp(prefix="dsfix-gpu-"))
    try:
        return run(work, options.out.resolve(), until)
    except OSError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(work: Path, out: Path, until: float) -> int:
    """1, with a sentence on standard error, if nothing could be run."""
    manifest = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    python = ".".join(map(str, sys.version_info[:2]))
    trouble = ""
    if python != manifest["python"]:
        trouble = f"this folder is for Python {manifest['python']}, this is {python}: build it with --python {python}"
    for name in ("torch", "pip"):
        if importlib.util.find_spec(name) is None:
            trouble = trouble or f"{name} is not installed for {sys.executable}"
    wheels = (FOLDER / "wheels").glob("*.whl")
    others = [path for path in wheels if not path.name.startswith("deepspeed-")]
    if importlib.util.find_spec("numpy") is not None:  # torch was built for the machine's own
        others = [path for path in others if not path.name.startswith("numpy-")]
    trouble = trouble or install(work / "site", *others)
    if trouble:
        print(f"run.py: {trouble}", file=sys.stderr)
        return 1
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(work / "site"), str(FOLDER), os.environ.get("PYTHONPATH")])
    )
    environment["PATH"] = os.pathsep.join([str(work / "site" / "bin"), os.environ.get("PATH", "")])
    environment["TMPDIR"] = str(work)
    arguments = [str(FOLDER), str(work), str(out), str(until)]
    return subprocess.run([sys.executable, "-c", _MAIN, *arguments], env=environment, cwd=work).returncode


def install(target: Path, *wheels: Path) -> str:
    """Install the wheels into that directory. Returns why that is impossible, or ""."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    argv = [*pip, "--target", str(target), *map(str, wheels)]
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return f"pip: {(done.stderr.splitlines() or ['no message'])[-1]}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
