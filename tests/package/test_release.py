"""`python -m tox run -e release`: in a separate file, so that it runs in parallel with the tests of installations."""

import os
import sys
from pathlib import Path

from tests.processes import ended


def test_a_release_is_built_with_the_same_bytes_twice_and_works_on_each_python(tmp_path):
    done = ended([sys.executable, Path(__file__).with_name("release.py"), tmp_path], tmp_path, os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [sdist] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    for name in (wheel.name, sdist.name):
        assert f"{name}: built twice with the same bytes; installed on Python 3." in done.stdout
