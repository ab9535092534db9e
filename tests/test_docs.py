"""The documents tell of every patch, and every patch tells its story."""

import re
from pathlib import Path

import pytest

from dsfix import registry

CHECKOUT = Path(__file__).resolve().parents[1]
ENTRIES = registry.catalogue()


def test_no_patch_is_broken():
    assert registry.load()[1] == ()


@pytest.mark.parametrize("patch_id", ENTRIES)
@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_the_pages_name_every_patch(patch_id, page):
    assert f"`{patch_id}`" in (CHECKOUT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("patch_id", ENTRIES)
def test_a_patch_tells_its_story(patch_id):
    entry = ENTRIES[patch_id]
    for heading in ("Why", "How", "Upstream", "Retire"):
        assert re.search(rf"^{heading}: ", entry.docstring, re.M), f"no {heading}"
    assert all(link.startswith("https://github.com/") for link in entry.patch.upstream)
    assert entry.patch.upstream
    assert callable(entry.module.reproduce)
    re.compile(entry.patch.symptom)
