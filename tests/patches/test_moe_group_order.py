"""moe_group_order leaves the order alone if PYTHONHASHSEED has fixed it, and only then."""

import os
import subprocess
import sys

import pytest

from dsfix import settings
from dsfix.catalogue.registry import catalogue

LATER = "import os, dsfix; os.environ['PYTHONHASHSEED'] = '7'"  # too late for the hashes
ORDER = (
    "from dsfix.catalogue.registry import catalogue; order = catalogue()['moe_group_order'].module._in_one_order; "
    "print(*order({'b', 'c', 'a', 'd'})); print(*{'b', 'c', 'a', 'd'})"
)


@pytest.mark.parametrize(
    ("seed", "flags", "before", "is_sorted"),
    [
        ("", [], "import dsfix", True),
        ("random", [], "import dsfix", True),
        ("", [], LATER, True),
        ("3", ["-E"], "import dsfix", True),  # Python does not read the variable
        ("3", [], "import dsfix", False),
        ("0", [], "import dsfix", False),
    ],
)
def test_the_order_of_names(seed, flags, before, is_sorted):
    env = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, *flags, "-c", f"{before}; {ORDER}"]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    result, own = run.stdout.splitlines()
    assert result == ("a b c d" if is_sorted else own)


def test_names_of_other_types():
    names = {"ep_size_2", 4, "ep_size_1"}
    in_order = list(names) if settings.HASHES_REPEAT else [4, "ep_size_1", "ep_size_2"]
    assert catalogue()["moe_group_order"].module._in_one_order(names) == in_order
