"""Writes tests/explain/tracebacks/: the output of real jobs that crash because of a bug.

    python tests/explain/record.py NAME RELEASE DIRECTORY

NAME is the id of a patch, whose reproduction runs without the patch, or a function in jobs.py; DIRECTORY contains that
release of DeepSpeed, installed by `pip install --target` for the Python that runs this. A reproduction's traceback is
the one by which it recognises its bug. Frames of torch except the last are removed, and paths are replaced.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from pathlib import Path

import jobs

import dsfix
from dsfix.catalogue.registry import catalogue
from dsfix.lab import reproduction
from dsfix.lab.isolation import isolated
from dsfix.lab.ranks import launch
from dsfix.lab.session import Lab
from dsfix.patch import BugPresent

HERE = Path(__file__).resolve().parent
KEPT = HERE / "tracebacks"
SITE = "/opt/conda/lib/python3.11/site-packages"
_KEPT_FRAMES = ("/deepspeed/", "/patches/", "jobs.py", "/zero_to_fp32.py")
_FRAME = re.compile(r'^(?P<rank>\[rank0\]: |)  File "(?P<path>[^"]+)", line .*\n(?:(?P=rank)    .*\n)*', re.M)


def _reproduction(into, patch_id, directory):
    """Runs one rank of a reproduction and writes its exception to `into`."""
    module = catalogue()[patch_id].module
    reproduce = module.reproduce

    def recorded(lab):
        try:
            return reproduce(lab)
        except BugPresent as seen:
            if error := seen.__cause__ or seen.__context__:
                Path(into).write_text("".join(traceback.format_exception(type(error), error, error.__traceback__)))
            raise

    module.reproduce = recorded
    return reproduction.main(patch_id, directory)


def _job(name):
    """Runs one rank of a job, which crashes like any job."""
    job = getattr(jobs, name)
    with Lab(device=getattr(job, "device", "cuda")) as lab:
        job(lab)


def _recorded(name, directory):
    """Returns the output of the job from its first traceback on; "" if there is none."""
    with tempfile.TemporaryDirectory(prefix="dsfix-") as scratch:
        if name in catalogue():
            raw = Path(scratch, "raw")
            command = (sys.executable, str(HERE / "record.py"), "--reproduction", str(raw))
            print(reproduction.run(name, patched=False, path=directory, rank_command=command).detail)
            return raw.read_text() if raw.exists() else ""
        environment = {**isolated(Path(scratch)), "PYTHONPATH": os.pathsep.join([str(directory), str(HERE)])}
        environment["DSFIX_ONLY"] = "torch_elastic_log,torch_elastic_get_socket_with_port,numpy_bufsize"
        command = [sys.executable, str(HERE / "record.py"), "--job", name]
        ranks = launch(command, ranks=getattr(getattr(jobs, name), "ranks", 1), env=environment, cwd=scratch)
        print(ranks[0].stderr[-2000:])
        found = re.search(r"^.*Traceback \(most recent call last\)[\s\S]*", ranks[0].stderr, re.M)
        return found.group() if found else ""


def shortened(text, directory):
    """Returns the frames of the job and of DeepSpeed and the last frame, with neutral paths."""
    frames = list(_FRAME.finditer(text))
    for place, frame in reversed(list(enumerate(frames))):
        behind = frames[place + 1] if place + 1 < len(frames) else None
        last = behind is None or behind.start() != frame.end()
        if not last and not any(part in frame["path"] for part in _KEPT_FRAMES):
            text = text[: frame.start()] + text[frame.end() :]
    text = text.replace(str(directory), SITE).replace(sys.base_prefix, "/opt/conda")
    text = re.sub(rf"{re.escape(str(HERE))}/jobs\.py|/[^\"]*/patches/\w+/\w+\.py", "/home/user/train.py", text)
    text = re.sub(r"(/[^\"\s]*)?/site-packages", SITE, text)
    return re.sub(r"/tmp/dsfix-[^\s'\"]*?(/\w+\.py|)(?=[\s'\"]|$)", r"/scratch\1", text)


def main(name, release, directory):
    directory = Path(directory).resolve()
    text = shortened(_recorded(name, directory), directory)
    if not text:
        return f"{name} on {release}: no traceback"
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{name}-{release}.txt").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    assert dsfix  # imported before torch
    how, *rest = sys.argv[1:]
    sys.exit({"--reproduction": _reproduction, "--job": _job}[how](*rest) if how.startswith("--") else main(how, *rest))
