"""The contract's checks on a stand-in DeepSpeed: a bad patch fails the right one."""

import textwrap
from types import ModuleType

import pytest

from dsfix.catalogue.registry import Entry
from dsfix.testing.contract import checks
from dsfix.testing.contract.case import Case, ContractBroken
from dsfix.testing.contract.machine import Machine

PACKAGES = {
    "torch/__init__.py": "",
    "torch/elastic.py": "logger = None\n",
    "deepspeed/__init__.py": "__version__ = '1.0'\nfrom . import m, agent\n",
    "deepspeed/agent.py": "from torch.elastic import log\n",
    "deepspeed/m.py": """
        import functools

        LIMIT = 3

        def traced(function):
            @functools.wraps(function)
            def call(*arguments):
                return function(*arguments)
            return call

        @traced
        def clip(norm, limit):
            scale = norm / limit
            if scale > 1 and limit not in {"none", "never", "no limit"}:
                return norm / scale
            return norm

        class Optimizer:
            @staticmethod
            def total(values):
                return sum(values)
    """,
    "deepspeed/comm/__init__.py": """
        from deepspeed.m import clip

        def reduce(values):
            out = max(values)
            return out
    """,
}
DECLARE = """
from dsfix.patch import Edit, Patch, Provide, Replace, Severity, Source

def declare(*changes, **fields):
    given = dict(title="a stand-in", severity=Severity.CRASH, affects={"deepspeed": "<0.11"}, symptom="x", upstream={},
                 fixed_in="0.11")
    return Patch(changes=changes, **{**given, **fields})

"""
AGENT = """
PATCH = declare(Provide("torch.elastic", "log", lambda module: module.logger), severity=Severity.IMPORT,
                symptom="cannot import name 'log'", fixed_in=None,
                present=(Source("deepspeed.agent", "from torch.elastic import log"),))
"""
COMM = 'Edit("deepspeed.comm:reduce", replace="max(values)", code="sum(values)")'
GOOD = {
    "edit_under_a_decorator": """
        PATCH = declare(Edit("deepspeed.m:clip", after="scale = norm / limit", code="scale = scale + 0.5"),
                        present=(Source("deepspeed.m:clip", "return norm / scale"),), fixed_in=None)
    """,
    "replace": """
        def factory(old):
            def clip(norm, limit):
                return min(old(norm, limit), limit)
            return clip
        PATCH = declare(Replace("deepspeed.m:clip", factory), Replace("deepspeed.m:LIMIT", lambda old: old + 1),
                        fixed_in=None)
    """,
}


@pytest.fixture
def cases(machine, tmp_path, dsfix_in):
    """Installs the stand-ins and a catalogue of these patches; returns id -> the patch's case."""

    def make(patches):
        front, root, scratch = (tmp_path / name for name in ("front", "root", "scratch"))
        scratch.mkdir()
        for path, text in PACKAGES.items():
            _write(root / path, text)
        _write(root / "deepspeed-0.10.dist-info/METADATA", "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.10\n")
        dsfix_in(front)
        texts = {"import_patch": AGENT, **patches}
        for name, text in texts.items():
            _write(front / f"dsfix/patches/{name}.py", DECLARE + textwrap.dedent(text))
        entries = {name: _entry(name, front / f"dsfix/patches/{name}.py") for name in sorted(texts)}
        return {
            name: Case(
                entry=entry,
                release="1.0",
                root=root,
                catalogue=entries,
                applying=tuple(entries.values()),
                front=(front,),
                machine=Machine(machine.starters[-1:], scratch),
            )
            for name, entry in entries.items()
        }

    return make


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")


def _entry(name, path):
    module = ModuleType(name)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    return Entry(name, module.PATCH, module)


@pytest.mark.parametrize("name", ["a_replacement", "replacement"])  # the id sorts before or after the other's
def test_a_target_that_one_patch_replaces_and_another_edits(cases, name):
    together = {name: GOOD["replace"], "edit_under_a_decorator": GOOD["edit_under_a_decorator"]}
    checks.all_at_once(list(cases(together).values()))


@pytest.mark.parametrize("name", ["a_replacement", "replacement"])
def test_leftovers_of_a_replacement_are_detected_where_another_patch_edits(cases, name):
    together = {
        name: """
            def factory(old):
                del old.__wrapped__
                def clip(norm, limit):
                    return old(norm, limit)
                return clip
            PATCH = declare(Replace("deepspeed.m:clip", factory), fixed_in=None)
        """,
        "edit_under_a_decorator": GOOD["edit_under_a_decorator"],
    }
    with pytest.raises(ContractBroken, match=rf"^{name} on .* everything reverted [\s\S]* deepspeed\.m:clip differs"):
        checks.all_at_once(list(cases(together).values()))


# what is wrong -> (the check that has to fail, a part of its message, the patch)
BAD = {
    "an anchor that is not there": (
        checks.every_import_order,
        "it is drifted",
        'PATCH = declare(Edit("deepspeed.comm:reduce", replace="min(values)", code="sum(values)"))',
    ),
    "evidence that never stands": (
        checks.every_import_order,
        "it is drifted",
        f'PATCH = declare({COMM}, present=(Source("deepspeed.comm:reduce", "return values"),))',
    ),
    "an edit that changes nothing": (
        checks.every_import_order,
        "change nothing",
        'PATCH = declare(Edit("deepspeed.comm:reduce", before="return out", code="pass"))',
    ),
    "a factory that returns another object each time": (
        checks.every_import_order,
        "differs",
        'import random\nPATCH = declare(Replace("deepspeed.m:LIMIT", lambda old: random.random()))',
    ),
    "an import patch that is for another message": (
        checks.every_import_order,
        "without the patch the import of deepspeed fails",
        AGENT.replace("cannot import name 'log'", "cannot import name 'logger'"),
    ),
    "evidence of the fix that any source has": (
        checks.every_import_order,
        "it is already-fixed",
        f'PATCH = declare({COMM}, fixed=(Source("deepspeed.comm:reduce", "out = max(values)"),))',
    ),
    "an edit that brings its anchor again": (
        checks.a_hand_edit_is_left_alone,
        "it is drifted",
        'PATCH = declare(Edit("deepspeed.comm:reduce", after="out = max(values)",\n'
        '                     code="values = [out]\\nout = max(values)"))',
    ),
    "a change in place, which cannot be taken back": (
        checks.it_can_be_reverted,
        "reverted deepspeed.m:Optimizer differs",
        "def factory(old):\n    total = old.total\n    old.total = lambda values: total(values) + 1\n    return old\n"
        'PATCH = declare(Replace("deepspeed.m:Optimizer", factory))',
    ),
    "a value for the first process only": (
        lambda case: checks.all_at_once([case]),
        "in the process spawned deepspeed.m:LIMIT differs",
        "import multiprocessing\n"
        'PATCH = declare(Replace("deepspeed.m:LIMIT", lambda old: multiprocessing.parent_process() is None))',
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_patch_fails(cases, name):
    check, says, text = BAD[name]
    patch_id = "import_patch" if "Provide" in text else "bad"
    case = cases({patch_id: text})[patch_id]
    with pytest.raises(ContractBroken, match=rf"^{patch_id} on DeepSpeed 1\.0: [\s\S]*{says}"):
        check(case)


def test_a_target_that_cannot_be_imported_here_is_not_the_patchs_fault(cases):
    text = 'PATCH = declare(Edit("deepspeed.gpu:f", replace="y = 1", code="y = 2"), fixed_in=None)'
    case = cases({"for_gpus": text})["for_gpus"]
    _write(case.root / "deepspeed/gpu.py", "import a_package_for_gpus\ndef f():\n    y = 1\n    return y\n")
    with pytest.raises(checks.NotApplicable, match="No module named 'a_package_for_gpus'"):
        checks.every_import_order(case)


def test_a_target_that_no_release_has_is_the_patchs_fault(cases):
    case = cases({"astray": 'PATCH = declare(Edit("deepspeed.n:f", replace="y = 1", code="y = 2"))'})["astray"]
    with pytest.raises(ContractBroken, match=r"the import of deepspeed\.n fails"):
        checks.every_import_order(case)


def test_a_patch_that_ends_other_processes_breaks_the_contract(cases):
    both = cases(
        {
            "edit": GOOD["edit_under_a_decorator"],
            "bad": """
                import multiprocessing, os
                def factory(old):
                    return os._exit(1) if multiprocessing.parent_process() is not None else old + 1
                PATCH = declare(Replace("deepspeed.m:LIMIT", factory))
            """,
        }
    )
    with pytest.raises(ContractBroken, match="the process spawned did not finish"):
        checks.all_at_once(list(both.values()))


def test_two_patches_to_one_statement_fail_together(cases):
    both = cases({"one": f"PATCH = declare({COMM})", "other": f"PATCH = declare({COMM.replace('sum', 'min')})"})
    with pytest.raises(ContractBroken, match=r"on DeepSpeed 1\.0: with all patches on it is conflict"):
        checks.all_at_once(list(both.values()))
