"""Writes tests/logs/tracebacks/: what a job without the patch prints, from really running the reproductions.

    python tests/logs/record.py ID RELEASE DIRECTORY

where DIRECTORY holds that release of DeepSpeed, as `pip install --target` leaves it, beside the Python that runs this.
The traceback is that of the exception in which the reproduction recognised its bug. Frames of torch are left out but
for the last, and paths are replaced.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

import dsfix
from dsfix.lab import reproduction
from dsfix.patch import BugPresent
from dsfix.registry import catalogue

KEPT = Path(__file__).parent / "tracebacks"
SITE = "/opt/conda/lib/python3.11/site-packages"
_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line .*\n(?:    .*\n)*')


def _rank(into, patch_id, directory):
    """One rank: the reproduction, which leaves the exception behind."""
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


def shortened(text, release_at):
    """The frames of the job and of DeepSpeed, and the last one, with paths that are nobody's."""
    frames = list(_FRAME.finditer(text))
    for place, frame in reversed(list(enumerate(frames))):
        behind = frames[place + 1] if place + 1 < len(frames) else None
        last = behind is None or behind.start() != frame.end()
        if not last and "deepspeed" not in frame["path"] and "patches" not in frame["path"]:
            text = text[: frame.start()] + text[frame.end() :]
    root = str(Path(dsfix.__file__).parents[1])
    text = text.replace(str(release_at), SITE)
    text = re.sub(rf"{re.escape(root)}/patches/\w+\.py", "/home/user/train.py", text)
    text = re.sub(r'(/[^"\s]*)?/site-packages', SITE, text)
    return re.sub(r"/tmp/dsfix-[^\s'\"]*", "/scratch", text)


def main(patch_id, release, directory):
    directory = Path(directory).resolve()
    KEPT.mkdir(exist_ok=True)
    kept = KEPT / f"{patch_id}-{release}.txt"
    raw = kept.with_suffix(".raw")
    command = (sys.executable, str(Path(__file__).resolve()), "--rank", str(raw.resolve()))
    sighting = reproduction.run(patch_id, patched=False, path=directory, rank_command=command)
    if not raw.exists():
        return f"{patch_id} on {release}: no traceback: {sighting.outcome}: {sighting.detail}"
    kept.write_text(shortened(raw.read_text(), directory))
    raw.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(_rank(*sys.argv[2:]) if sys.argv[1] == "--rank" else main(*sys.argv[1:]))
