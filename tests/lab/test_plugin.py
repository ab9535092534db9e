"""The tests shown in docs/plugins.md; `python -m tox run -e plugin-example` runs those of the example itself."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PATCH_ID = "dsfix-plugin-example:get_batch_info_methods"


def test_the_authors_tests_on_the_page(has_deepspeed, tmp_path):
    """A sample: one check, and all together."""
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(DOCS / "plugin-example", source)  # a build leaves files in the source
    command = ["uv", "pip", "install", "--python", sys.executable, "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, capture_output=True)
    blocks = re.findall(r"```python\n# plugin/(\S+)\n(.*?)```", (DOCS / "plugins.md").read_text("utf-8"), re.S)
    for path, text in blocks:
        (tmp_path / path).write_text(text, encoding="utf-8")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "DS_ACCELERATOR": "cpu",
        "DSFIX_ONLY": f"{PATCH_ID},no_sync_incompatible",
    }
    chosen = ["-k", "reverted or together", "-p", "no:cacheprovider", "--ignore=source"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *chosen],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert re.search(r"\b2 passed, \d+ deselected", done.stdout), done.stdout + done.stderr
