"""Every function of the modules that patches change is found, and its code is reproduced from the source."""

from pathlib import Path

import pytest

from dsfix.versions import module_file

_PACKAGES = ("deepspeed.runtime", "deepspeed.utils", "deepspeed.comm", "deepspeed.moe", "deepspeed.checkpoint")


def _modules():
    root = Path(module_file("deepspeed") or "").parent
    names = []
    for package in _PACKAGES:
        for path in sorted((root / package.partition(".")[2]).rglob("*.py")):
            parts = ("deepspeed", *path.relative_to(root).with_suffix("").parts)
            names.append(".".join(part for part in parts if part != "__init__"))
    return names


@pytest.fixture(scope="module")
def result(run_program, import_patches):
    results, _ = run_program("sweep", *_modules(), DSFIX_ONLY=import_patches)
    return dict(results)


def test_no_function_is_misidentified(result):
    assert result["wrong"] == []


def test_the_sweep_has_seen_the_package(result, record_property):
    each = result["seconds"] / result["functions"] * 1000
    record_property("functions", result["functions"])
    record_property("milliseconds_per_function", round(each, 2))
    print(f"{result['functions']} functions of {result['modules']} modules, {each:.2f} ms each; {result['absent']}")
    assert result["modules"] > 80
    assert result["functions"] > 1500
    assert len(result["absent"]) < 20  # modules with optional dependencies, functions behind `if`


def test_an_edited_function_is_compiled_with_the_edit(run_program, import_patches):
    [value, runs], _ = run_program("compiled", DSFIX_ONLY=import_patches)
    assert value == [3.0, 3.0, 3.0]
    assert runs > 0
