"""The fix and the test that are written for DeepSpeed, on stand-ins for a patch and the module that it changes."""

import ast
import importlib
import itertools
import textwrap

import pytest

from dsfix.catalogue.registry import Entry
from dsfix.cli.printing.edits import Unwritable
from matrix.pull_requests.fix import changed_files
from matrix.pull_requests.text import without_annotations
from matrix.pull_requests.unit_test import unit_test

TARGET = """\
import torch
from somewhere import comm as dist


class Engine:

    def step(self):
        count = 1
        # what is above stays
        self.run(count)
        return count
"""
NUMBERS = itertools.count()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a stand-in for DeepSpeed's module and a patch of it; returns the patch's entry and the module's path."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(edit, helpers="", reproduction="    return ''", target=TARGET, **declared):
        name = f"part_{next(NUMBERS)}"
        (tmp_path / "deepspeed").mkdir()
        (tmp_path / "deepspeed" / "__init__.py").touch()
        (tmp_path / "deepspeed" / f"{name}.py").write_text(target)
        source = [
            "from __future__ import annotations",
            "from dsfix.patch import BugPresent, CannotTell, Edit, Patch, Provide, Replace, Severity",
            textwrap.dedent(helpers),
            f"_STEP = 'deepspeed.{name}:Engine.step'",
            "PATCH = Patch(title='a title', severity=Severity.CRASH, affects={'deepspeed': '>=0'},",
            f"    changes=({edit},), symptom='is broken', ranks=2)",
            "def reproduce(lab: Lab) -> str:",
            reproduction,
        ]
        (tmp_path / f"patch_of_{name}.py").write_text("\n".join(source) + "\n")
        module = importlib.import_module(f"patch_of_{name}")
        return Entry(module.__name__, module.PATCH, module)

    return written


def _after(entry):
    [(path, (_, after))] = changed_files(entry).items()
    assert path.startswith("deepspeed/part_")
    ast.parse(after)
    return after


def _added(entry):
    """The lines that are new."""
    return [line for line in _after(entry).splitlines() if line.strip() and line not in TARGET.splitlines()]


EDIT = "Edit(_STEP, after='count = 1', code='count = more(count)', uses=(more,))"


class TestFix:
    def test_an_edit_without_helpers_is_only_its_code(self, write):
        entry = write("Edit(_STEP, before='return count', code='count += 1')")
        assert _after(entry) == TARGET.replace("        return", "        count += 1\n        return")

    def test_a_helper_becomes_a_private_function_in_front_of_the_class(self, write):
        entry = write(EDIT, "def more(count: int | None) -> int:\n    return count + 1  # type: ignore[operator]")
        head, _, rest = _after(entry).partition("\n\n\ndef _more(count):\n    return count + 1\n\n\n")
        assert head == TARGET.partition("\n\n\n")[0]
        assert rest.startswith("class Engine:")
        assert "        count = _more(count)\n" in rest

    def test_what_a_helper_uses_comes_with_it(self, write):
        helpers = """
        import math
        ONE = 1
        def more(count):
            return other(count) + math.floor(ONE)
        def other(count):
            return more(count) if count else 0
        def unused():
            return 1
        """
        after = _after(write(EDIT, helpers))
        assert after.startswith("import math\nimport torch\n")
        assert "\n_ONE = 1\n" in after
        assert "return _other(count) + math.floor(_ONE)" in after
        assert "unused" not in after

    def test_an_import_that_the_file_has_is_not_repeated(self, write):
        helpers = """
        def more(count):
            import torch
            from somewhere import comm as dist
            from elsewhere import other
            return torch.add(dist.rank(), other(count))
        """
        assert [line for line in _added(write(EDIT, helpers)) if "import" in line] == [
            "    from elsewhere import other"
        ]

    @pytest.mark.parametrize(
        "code",
        [
            "if count:\\n    from {0} import more\\n    count = more(count)",
            "import {0} as helpers\\nif count:\\n    count = helpers.more(count)",
        ],
    )
    def test_however_the_edit_imports_its_helper(self, write, code):
        edit = f"Edit(_STEP, after='count = 1', code='{code}'.format(__name__))"
        assert _added(write(edit, "def more(count):\n    return count")) == [
            *("def _more(count):", "    return count", "        if count:", "            count = _more(count)")
        ]

    def test_an_edit_may_use_what_another_of_the_function_imports(self, write):
        edits = f"{EDIT}, Edit(_STEP, before='return count', code='count = more(count)')"
        assert _added(write(edits, "def more(count):\n    return count")).count("        count = _more(count)") == 2

    def test_a_name_that_the_file_has_is_not_taken(self, write):
        entry = write(EDIT, "def more(count):\n    return count", target=TARGET + "\n\ndef _more():\n    pass\n")
        assert "count = _patch_of_" in _after(entry)

    def test_what_the_replaced_statements_begin_and_end_with_stays_as_it_is(self, write):
        anchor = "count = 1\\nself.run(count)\\nreturn count"
        entry = write(f"Edit(_STEP, replace='{anchor}', code='{anchor.replace('run', 'walk')}')")
        assert _after(entry) == TARGET.replace("run", "walk").replace("        # what is above stays\n", "")

    def test_state_of_the_patch_loses_its_prefix(self, write):
        entry = write("Edit(_STEP, after='count = 1', code='self._dsfix_seen = count')")
        assert _added(entry) == ["        self._seen = count"]

    @pytest.mark.parametrize(
        ("edit", "helpers", "why"),
        [
            (
                "Replace(_STEP, lambda original: original)",
                "",
                r"sets deepspeed.part_\d+:Engine.step at run time \(Replace\)",
            ),
            ("Edit('ast:parse', before='return 1', code='pass')", "", "edits ast"),
            ("Provide(_STEP.partition(':')[0], 'vars', lambda module: vars)", "", r"at run time \(Provide\)"),
            (EDIT, "def more(count):\n    from dsfix.log import warn\n    warn('')", "uses warn of dsfix.log"),
            ("Edit(_STEP, after='count = 1', code='print(\"dsfix\")')", "", "names dsfix"),
        ],
    )
    def test_what_cannot_be_written_is_one_sentence(self, write, edit, helpers, why):
        with pytest.raises(Unwritable, match=why):
            changed_files(write(edit, helpers))


class TestUnitTest:
    @pytest.fixture
    def body(self, write):
        """The statements of the test, and the whole text."""

        def made(reproduction, helpers=""):
            source = textwrap.indent(textwrap.dedent(reproduction).strip("\n"), "    ")
            entry = write("Edit(_STEP, after='count = 1', code='pass')", helpers, source)
            text = unit_test(entry)
            test = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == "test")
            arguments = [each.arg for each in test.args.args]
            return "\n".join(map(ast.unparse, test.body)), arguments, text

        return made

    def test_the_lab_is_written_as_upstream_writes_it(self, body):
        statements, arguments, text = body("""
            lab.require_ranks(2)
            torch, zero, models = lab.torch, lab.deepspeed.zero, lab.models
            inputs = models.regression_batch(lab.rank, step=0)[0]
            torch.distributed.barrier()
            return str(inputs.to(lab.device))
        """)
        assert statements.splitlines() == [
            "zero = deepspeed.zero",
            "inputs = regression_batch(dist.get_rank(), step=0)[0]",
            "dist.barrier()",
            "str(inputs.to(get_accelerator().current_device_name()))",
        ]
        assert arguments == ["self"]
        assert "import deepspeed.comm as dist" in text
        assert "    world_size = 2\n" in text
        assert "class MLP" not in text

    def test_the_bug_fails_and_what_cannot_be_told_is_skipped(self, body):
        statements, _, text = body("""
            from packaging.version import Version
            if Version(lab.deepspeed.__version__) < Version("0.13.0"):
                raise CannotTell("too old")
            if not hasattr(lab.deepspeed, "zero"):
                raise CannotTell("no ZeRO") from None
            try:
                lab.deepspeed.run()
            except ValueError as error:
                if PATCH.symptom in str(error):
                    raise BugPresent(f"{lab.deepspeed.__name__}: {error}") from error
                raise
            return "it ran"
        """)
        assert statements.splitlines()[:2] == ["if not hasattr(deepspeed, 'zero'):", "    pytest.skip('no ZeRO')"]
        assert "if 'is broken' in str(error):" in statements
        assert "raise AssertionError(f'{deepspeed.__name__}: {error}') from error" in statements
        assert "packaging" not in text
        assert "it ran" not in text

    def test_a_function_that_got_the_lab_gets_the_directory_if_it_needs_one(self, body):
        helpers = """
        def first(lab: Lab, name: str) -> str:
            return second(lab) + name
        def second(lab: Lab) -> str:
            return str(lab.tmp)
        def third(lab: Lab) -> int:
            return lab.world_size
        """
        reproduction = 'first(lab, "a")\nthird(lab)\nprint(f"{third(lab)} {first(lab, str(1))}")\nreturn ""'
        statements, arguments, text = body(reproduction, helpers)
        assert statements == "first(tmp_path, 'a')\nthird()\nprint(f'{third()} {first(tmp_path, str(1))}')"
        assert arguments == ["self", "tmp_path"]
        assert "def first(tmp_path, name):\n    return second(tmp_path) + name\n" in text
        assert "def third():\n    return dist.get_world_size()\n" in text

    def test_a_name_of_the_lab_that_is_a_local_one_is_renamed(self, body):
        statements, _, text = body("""
            from dsfix.patches import _half as half
            loss = half.loss(None, None, None, None)
            return str(loss)
        """)
        assert statements == "loss = half_loss(None, None, None, None)\nstr(loss)"
        assert "def half_loss(" in text

    def test_the_engine_comes_with_the_labs_defaults(self, body):
        statements, _, text = body("""
            engine = lab.initialize(lab.models.MLP(), {"fp16": {"enabled": True}})
            return lab.reference.compare(lab.parameters(engine), {})
        """)
        assert statements.endswith("compare(full_parameters(engine), {})")
        assert "def initialize(model, config, **options):\n" in text
        assert '_DEFAULTS = {\n    "gradient_clipping": 0.0,' in text
        assert "if not get_accelerator().is_fp16_supported():\n            pytest.skip(" in text

    @pytest.mark.parametrize(
        ("reproduction", "why"),
        [
            ("lab.late_streams()\nreturn ''", "emulated device"),
            ("return '' if lab.emulated else 'a GPU'", "emulated device"),
            ("return lab.device_name", "lab.device_name"),
            ("from dsfix.lab.ranks import launch\nlaunch()\nreturn ''", "launch of dsfix.lab.ranks"),
            ("unknown = {}\nunknown['lab'](lab)\nreturn ''", "passes the lab"),
        ],
    )
    def test_what_cannot_be_written_is_one_sentence(self, body, reproduction, why):
        with pytest.raises(Unwritable, match=why):
            body(reproduction)


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("def f(a: int, *b: str, c: float = 1.0, **d: object) -> dict[str, int]: ...", "def f(a, *b, c=1.0, **d): ..."),
        ("x: list[int] = [1]  # type: ignore[misc]", "x = [1]"),
        ("class A:\n    a: list[int]\n    b: Other = 1", "class A:\n    a: list\n    b: object = 1"),
        ("def f(é: 'é' = (1, 2)) -> None: ...", "def f(é=(1, 2)): ..."),
        ("def f():\n    a: int\n    return 1", "def f():\n    return 1"),
    ],
)
def test_annotations_go(source, plain):
    assert without_annotations(source) == plain
