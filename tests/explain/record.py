"""Writes tests/explain/tracebacks/: the tracebacks by which reproductions recognise their bugs.

    python tests/explain/record.py ID RELEASE DIRECTORY

The reproduction of the patch ID runs without the patch; DIRECTORY contains that release of DeepSpeed, installed by
`pip install --target` for the Python that runs this. Frames of torch except the last are removed, and paths are
replaced.
"""

import re
import sys
import tempfile
import traceback
from pathlib import Path

import dsfix
from dsfix.catalogue.registry import catalogue
from dsfix.lab import reproduction
from dsfix.patch import BugPresent

HERE = Path(__file__).resolve().parent
KEPT = HERE / "tracebacks"
SITE = "/opt/conda/lib/python3.11/site-packages"
_KEPT_FRAMES = ("/deepspeed/", "/patches/", "/zero_to_fp32.py")
_FRAME = re.compile(r'^  File "(?P<path>[^"]+)", line .*\n(?:    .*\n)*', re.M)


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


def _recorded(patch_id, directory):
    """Returns the traceback; "" if there is none."""
    with tempfile.TemporaryDirectory(prefix="dsfix-") as scratch:
        raw = Path(scratch, "raw")
        command = (sys.executable, str(HERE / "record.py"), "--reproduction", str(raw))
        print(reproduction.run(patch_id, patched=False, path=directory, rank_command=command).detail)
        return raw.read_text() if raw.exists() else ""


def shortened(text, directory):
    """Returns the frames of the job and of DeepSpeed and the last frame, with neutral paths."""
    frames = list(_FRAME.finditer(text))
    for place, frame in reversed(list(enumerate(frames))):
        behind = frames[place + 1] if place + 1 < len(frames) else None
        last = behind is None or behind.start() != frame.end()
        if not last and not any(part in frame["path"] for part in _KEPT_FRAMES):
            text = text[: frame.start()] + text[frame.end() :]
    text = text.replace(str(directory), SITE).replace(sys.base_prefix, "/opt/conda")
    text = re.sub(r"/[^\"]*/patches/\w+/\w+\.py", "/home/user/train.py", text)
    text = re.sub(r"(/[^\"\s]*)?/site-packages", SITE, text)
    return re.sub(r"/tmp/dsfix-[^\s'\"]*?(/\w+\.py|)(?=[\s'\"]|$)", r"/scratch\1", text)


def main(patch_id, release, directory):
    directory = Path(directory).resolve()
    text = shortened(_recorded(patch_id, directory), directory)
    if not text:
        return f"{patch_id} on {release}: no traceback"
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{patch_id}-{release}.txt").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    assert dsfix  # imported before torch
    rank = sys.argv[1] == "--reproduction"
    sys.exit(_reproduction(*sys.argv[2:]) if rank else main(*sys.argv[1:]))
