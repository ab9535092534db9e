"""The samples of output in docs/."""

import json
import os
import re
from pathlib import Path

from matrix.site.samples import prints

DOCS = Path(__file__).resolve().parents[1] / "docs"


def assert_sample(page, shown):
    """The page has a sample of what was shown; `matrix.site` asks for all of it, in a file."""
    blocks = re.findall(r"^```(\w*)\n([\s\S]*?)^```$", (DOCS / page).read_text("utf-8"), re.M)
    sample = next((text for language, text in blocks if not language and prints(shown, text)), None)
    assert sample, f"{page} has no sample of this:\n{shown}"
    if "SAMPLES" in os.environ:
        with open(os.environ["SAMPLES"], "a", encoding="utf-8") as file:
            print(json.dumps([sample, f"{shown}\n"]), file=file)
