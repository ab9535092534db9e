"""The cache: what a process learns about the source, and what the next process reuses."""

import os
import shutil
import time

import pytest

from dsfix.engine.cache import declaration_key
from dsfix.patch import Edit

USE = """
    import dsfix, deepspeed.m as m
    tell([m.f(1), outcomes()["cure"]])
"""
# a source that is read again cannot be parsed then
BLIND = """
    import ast
    def parse(*arguments, **options):
        raise RuntimeError("is read again")
    ast.parse = parse
""" + USE  # fmt: skip
CURED = [3, "applied"]


def learned(world):
    return sorted((world.path / "cache").glob("learned-*"))


@pytest.fixture
def known(simple):
    """The stand-in with one flaw; a process has already filled the cache."""
    assert simple.run(USE).value == CURED
    assert simple.run(BLIND).value == CURED
    return simple


def test_without_a_cache_the_source_is_read(simple):
    result = simple.run(BLIND)
    assert result.value == [2, "failed"]


PROVEN = """
    from dsfix.catalogue import registry
    from dsfix.engine import verdict
    registry.is_proven = lambda digest: digest in {digests!r}
    import dsfix, deepspeed.m as m
    patch = dsfix.process._engine.states["cure"].patch
    tell([m.f(1), outcomes()["cure"], verdict.fingerprint(*verdict.fingerprint_inputs(patch))])
"""


def test_a_source_that_is_proven_is_not_judged_again(simple):
    """The evidence below excludes the patch, but its digest says that a proof has accepted it."""
    change = """Edit("deepspeed.m:f", replace="y = x + 1", code="y = x + 2")"""
    simple.patch("cure", f"""PATCH = declare({change}, present=(Source("deepspeed.m:f", "y = x * 9"),))""")
    *kept_out, digest = simple.run(PROVEN.format(digests=[])).value
    assert kept_out == [2, "drifted"]
    known = PROVEN.format(digests=[digest])
    shutil.rmtree(simple.path / "cache")
    assert simple.run(known).value == [3, "applied", digest]
    shutil.rmtree(simple.path / "cache")
    simple.module("deepspeed.m", "def f(x):\n    y = x + 1\n    return y * 10\n")
    assert simple.run(known).value[:2] == [20, "drifted"]
    simple.module("deepspeed.m", "def f(x):\n    y = x + 1\n    return y\n")
    simple.patch("cure", f"""PATCH = declare({change}, present=(Source("deepspeed.m:f", "y = x * 8"),))""")
    assert simple.run(known).value[:2] == [2, "drifted"]


LOADED = """
    import sys, dsfix, deepspeed.m as m
    loaded = lambda: any(name.endswith(".cure") for name in sys.modules)
    tell([loaded(), m.f(1), loaded(), outcomes()["cure"]])
"""


def test_a_patch_whose_edits_are_known_is_loaded_by_the_first_call_of_its_helper(simple):
    declared = """
def helper(x):
    return x + {added}
PATCH = declare(Edit("deepspeed.m:f", replace="y = x + 1", code="y = helper(x)", uses=(helper,)))
"""
    simple.patch("cure", declared.format(added=2))
    assert simple.run(LOADED).value == [True, 3, True, "applied"]
    assert simple.run(LOADED).value == [False, 3, True, "applied"]
    simple.patch("cure", declared.format(added=20))  # its file has changed
    assert simple.run(LOADED).value == [True, 21, True, "applied"]


def test_a_patch_file_that_is_replaced_during_a_job_is_not_read(world):
    initialize = "def initialize(model): return model,"
    world.package(init=initialize, m="def f(x):\n    y = x + 1\n    return y\n")
    change = 'Edit("deepspeed.m:f", replace="y = x + 1", code="y = helper(x)", uses=(helper,))'
    world.patch("cure", f"def helper(x): return x + 2\nPATCH = declare({change})")
    job = f"""
    import dsfix, deepspeed, deepspeed.m as m
    deepspeed.initialize(model=None)
    open({str(world.patches / "cure.py")!r}, "w").write("raise SystemExit")
    tell(m.f(1))
    """
    assert world.run(LOADED).value == [True, 3, True, "applied"]
    assert world.run(job).value == 3


def test_a_patch_file_that_is_removed_during_a_job_stays_in_the_report(known):
    removal = f"import dsfix, deepspeed.m, os; os.unlink({str(known.patches / 'cure.py')!r}); tell(outcomes())"
    assert known.run(removal).value == {"cure": "applied"}


def test_the_combined_edits_of_several_patches_are_cached(world):
    world.package(m="def f(x):\n    y = x + 1\n    y = y * 2\n    return y\n")
    world.patch("cure", """PATCH = declare(Edit("deepspeed.m:f", replace="y = x + 1", code="y = x + 2"))""")
    world.patch("other", """PATCH = declare(Edit("deepspeed.m:f", replace="y = y * 2", code="y = y * 5"))""")
    assert world.run(USE).value == [15, "applied"]
    assert world.run(BLIND).value == [15, "applied"]
    reverted = """
    import dsfix, deepspeed.m as m
    dsfix.revert("other")
    tell([m.f(1), outcomes()["cure"]])
    """
    assert world.run(reverted).value == [6, "applied"]
    assert world.run(USE, DSFIX_SKIP="other").value == [6, "applied"]
    assert world.run(BLIND, DSFIX_SKIP="other").value == [6, "applied"]
    assert world.run(BLIND).value == [15, "applied"]


def test_a_verdict_against_a_patch_is_cached(world):
    world.package(m="def f(x):\n    y = x + 7\n    return y\n")
    world.patch("cure", """PATCH = declare(Edit("deepspeed.m:f", replace="y = x + 1", code="y = x + 2"))""")
    first, second = world.run(USE), world.run(BLIND)
    assert first.value == second.value == [8, "drifted"]
    assert first.warnings == second.warnings != []


def test_a_source_that_has_changed_is_read_again(known):
    known.module("deepspeed.m", "def f(x):\n    y = x + 1\n    return y * 10\n")
    assert known.run(BLIND).value == [20, "failed"]
    assert known.run(USE).value == [30, "applied"]
    known.module("deepspeed.m", "def f(x):\n    y = x - 1\n    return y\n")
    assert known.run(USE).value == [0, "drifted"]


def test_a_source_that_has_changed_unnoticed_is_compared_with_what_is_in_memory(known):
    """A file is replaced by one of the same size and time: the code shows the difference."""
    file = known.site / "deepspeed" / "m.py"
    before = file.stat()
    file.write_text(file.read_text().replace("return y", "return 0"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known.run(USE).value == [0, "applied"]
    file.write_text(file.read_text().replace("x + 1", "x + 7"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known.run(USE).value == [0, "drifted"]


def test_a_change_by_another_tool_in_memory_is_still_a_conflict(known):
    result = known.run("""
        import sys
        class Tool:
            def find_spec(self, name, path=None, target=None):
                if name == "deepspeed.m":
                    sys.meta_path.remove(self)
                    from importlib.util import find_spec
                    spec = find_spec(name)
                    execute = spec.loader.exec_module
                    def then(module):
                        execute(module)
                        with open(module.__file__) as file:
                            changed = compile(file.read().replace("x + 1", "x + 41"), module.__file__, "exec")
                        exec(changed, vars(other := type(sys)("other")))
                        module.f.__code__ = other.f.__code__
                    spec.loader.exec_module = then
                    return spec
        import dsfix
        sys.meta_path.append(Tool())
        sys.meta_path.insert(1, sys.meta_path.pop())
        import deepspeed.m as m
        tell([m.f(1), outcomes()["cure"]])
        """)
    assert result.value == [42, "conflict"]


def test_a_patch_that_has_changed_is_judged_again(known):
    known.patch("cure", """PATCH = declare(Edit("deepspeed.m:f", replace="y = x + 1", code="y = x + 5"))""")
    assert known.run(USE).value == [6, "applied"]


def test_each_optimization_level_has_its_own_cache(simple):
    simple.module("deepspeed.m", "def f(x):\n    y = x + 1\n    assert y < 0\n    return y\n")
    assert simple.run(USE, python=("-O",)).value == CURED
    assert simple.run(BLIND, python=("-O",)).value == CURED
    assert "AssertionError" in simple.run(USE, code=1).err


@pytest.mark.parametrize("damage", [lambda text: text[:100], lambda text: b"", lambda text: text[:-1] + b"!"])
def test_a_damaged_file_is_rebuilt(known, damage):
    (file,) = learned(known)
    file.write_bytes(damage(file.read_bytes()))
    assert known.run(USE).value == CURED
    assert known.run(BLIND).value == CURED


@pytest.mark.skipif(os.name != "posix", reason="access rights are POSIX's")
def test_a_file_that_others_can_write_is_not_run(known):
    (file,) = learned(known)
    file.chmod(0o666)
    assert known.run(BLIND).value == [2, "failed"]
    assert known.run(USE).value == CURED
    (file,) = learned(known)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(getattr(os, "geteuid", int)() != 0 or os.name != "posix", reason="only root gives files away")
def test_in_a_shared_directory_each_user_has_a_file(known):
    (file,) = learned(known)
    content = file.read_bytes()
    os.chown(file, 12345, -1)
    assert known.run(USE).value == CURED
    assert known.run(BLIND).value == CURED
    assert len(learned(known)) == 2
    assert (file.read_bytes(), file.stat().st_uid) == (content, 12345)


def test_without_a_writable_directory_nothing_is_cached_or_logged(simple):
    (simple.path / "file").touch()
    for _ in range(2):
        result = simple.run(USE, DSFIX_CACHE=str(simple.path / "file" / "below"))
        assert (result.value, result.warnings) == (CURED, [])


def test_files_left_by_a_killed_process_are_removed(known):
    (file,) = learned(known)
    file.unlink()
    partial = file.with_suffix(".partial")
    partial.write_text("half")
    assert known.run(USE).value == CURED
    assert learned(known) == [partial]  # from a process that may still be writing
    os.utime(partial, (time.time() - 3600,) * 2)
    assert known.run(USE).value == CURED
    assert learned(known) == [file]


def test_sixteen_installations_are_kept(known):
    (file,) = learned(known)
    old = [file.with_name(f"learned-{number:02}.bin") for number in range(20)]
    for number, each in enumerate(old):
        each.touch()
        os.utime(each, (number, number))
    file.unlink()
    assert known.run(USE).value == CURED
    assert learned(known) == sorted([file, *old[5:]])


def test_the_key_of_an_edit_says_where_its_helpers_are_defined():
    def key(module):
        def helper(): ...

        helper.__module__, helper.__qualname__ = module, "helper"
        return declaration_key(Edit("deepspeed.m:f", after="y = 1", code="helper()", uses=(helper,)))

    assert key("a") != key("b")
