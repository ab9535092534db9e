"""Changes that make a patch's proofs stale."""

import importlib
import linecache
import sys

import pytest

from dsfix.catalogue.registry import Entry
from matrix import fingerprints

SHARED = '''
FACTOR = 2

def helper(x):
    """Text."""
    if x is None:
        raise ValueError("Text.")
    return FACTOR * other(x)

def other(x):
    return x

def unused(x):
    return x
'''
PATCH = """
from dsfix.patch import Edit, Patch, Severity
{imports}

def own(x):
    return {calls}

PATCH = Patch(
    title="t", severity=Severity.CRASH, affects={{"deepspeed": ">=1"}}, symptom="", upstream={{}}, fixed_in=None,
    changes=(Edit("m:f", before="return c", code="c = {name}(c)", uses=({name},)),),
)

def reproduce(lab):
    return "seen"
"""
KINDS = {
    "calls it": {"imports": "from ._shared import helper", "calls": "x", "name": "helper"},
    "calls what calls it": {"imports": "from ._shared import helper", "calls": "helper(x)", "name": "own"},
    "calls another": {"imports": "from ._shared import unused", "calls": "x", "name": "unused"},
    "shares nothing": {"imports": "", "calls": "x", "name": "own"},
}


@pytest.fixture
def of(tmp_path, monkeypatch):
    """The fingerprints of a patch of that kind, and of its changes, with that text of the shared module."""
    package = tmp_path / "some_patches"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def made(kind, shared):
        for name in [each for each in sys.modules if each.partition(".")[0] == package.name]:
            monkeypatch.delitem(sys.modules, name)
        (package / "_shared.py").write_text(shared)
        (package / "a_patch.py").write_text(PATCH.format(**KINDS[kind]))
        importlib.invalidate_caches()
        linecache.clearcache()
        module = importlib.import_module("some_patches.a_patch")
        entry = Entry("a_patch", module.PATCH, module)
        return (*fingerprints.of(entry), fingerprints.of_changes(entry))

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return made


@pytest.mark.parametrize("change", [("FACTOR = 2", "FACTOR = 3"), ("return FACTOR", "return -FACTOR"), ("x\n", "-x\n")])
@pytest.mark.parametrize("kind", ["calls it", "calls what calls it"])
def test_a_change_of_what_a_patch_shares_makes_its_changes_stale(of, kind, change):
    declaration, reproduction, changes = of(kind, SHARED)
    other = of(kind, SHARED.replace(*change, 1))
    assert other[1] == reproduction
    assert other[0] != declaration
    assert other[2] != changes


@pytest.mark.parametrize("kind", ["calls another", "shares nothing"])
def test_a_patch_is_not_stale_for_what_it_does_not_use(of, kind):
    assert of(kind, SHARED.replace("FACTOR = 2", "FACTOR = 3")) == of(kind, SHARED)


def test_text_does_not_count(of):
    assert of("calls it", SHARED.replace("Text.", "Other.")) == of("calls it", SHARED)
