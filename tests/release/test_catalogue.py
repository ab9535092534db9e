"""The source alone says of the installed release what its version number says: so forks are judged rightly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from dsfix import registry


@pytest.fixture(scope="module")
def with_number(judged: Any, original: Path) -> dict[str, tuple[str, str]]:
    return dict(judged(original))


@pytest.fixture(scope="module")
def without_number(
    judged: Any, original: Path, release: Version, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, str]]:
    root = tmp_path_factory.mktemp("numberless")
    (root / "deepspeed").symlink_to(original / "deepspeed")
    (described,) = original.glob("deepspeed-*.dist-info")
    shutil.copytree(described, root / described.name)
    text = (described / "METADATA").read_text(encoding="utf-8")
    hidden = text.replace(f"\nVersion: {release}\n", "\nVersion: unknown\n", 1)
    assert hidden != text
    (root / described.name / "METADATA").write_text(hidden, encoding="utf-8")
    return dict(judged(root))


@pytest.mark.parametrize("patch_id", registry.catalogue())
def test_the_source_decides_as_the_number_does(
    patch_id: str, with_number: dict[str, tuple[str, str]], without_number: dict[str, tuple[str, str]]
) -> None:
    number, source = with_number[patch_id], without_number[patch_id]
    assert (source[0] == "pending") == (number[0] == "pending"), f"number: {number}; source: {source}"
    assert source[0] in ("pending", "not-affected", "already-fixed", "disabled"), source
