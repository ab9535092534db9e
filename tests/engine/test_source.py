"""Finding functions in source text without importing it, for edits and for `python -m dsfix list`."""

import importlib
import inspect
import os
import py_compile
import shutil

import pytest

from dsfix.engine import rewrite, source, verdict
from dsfix.outcome import ChangeRefused, Outcome
from dsfix.patch import Edit
from dsfix.versions import module_file


def lines_of(bench, text, qualname, encoding="utf-8"):
    """The first lines of what is found under a name, having checked that each can be parsed."""
    name = bench.write(text, encoding=encoding)
    blocks = source.find_blocks(module_file(name), qualname)
    for block in blocks:
        node = block.parse()
        assert min([node.lineno, *(each.lineno for each in node.decorator_list)]) == block.first
    return [block.first for block in blocks]


@pytest.mark.parametrize(
    ("text", "qualname", "lines"),
    [
        ("def f():\n    x = 1\n", "f", [1]),
        ("def f(): x = 1\ndef g(): pass\n", "f", [1]),
        ("def f(): x = 1", "f", [1]),
        ("async def f():\n    x = 1\n", "f", [1]),
        ("async   def f  ():\n    x = 1\n", "f", [1]),
        ("class C:\n    def f(self):\n        x = 1\n", "C.f", [2]),
        ("class C:\n    class D:\n        def f(self): x = 1\n    def f(self): x = 2\n", "C.f", [4]),
        ("class C:\n    class D:\n        def f(self): x = 1\n    def f(self): x = 2\n", "C.D.f", [3]),
        ("class C:\n    pass\ndef f(): x = 1\n", "C.f", []),
        ("def g():\n    def f(): x = 1\n", "f", []),
        ("def g():\n    def f(): x = 1\n", "g.<locals>.f", [1]),
        ("class C:\n    def g(self):\n        def f(): x = 1\n", "C.g.<locals>.f", [2]),
        ("if a:\n    def f(): x = 1\nelse:\n    def f(): x = 2\n", "f", [2, 4]),
        ("try:\n    def f(): x = 1\nexcept OSError:\n    def f(): x = 2\n", "f", [2, 4]),
        ("class C:\n    if a:\n        def f(self): x = 1\n    def g(self): pass\n", "C.f", [3]),
        ("@overload\ndef f(a: int): ...\n@overload\ndef f(a: str): ...\ndef f(a): x = 1\n", "f", [1, 3, 5]),
        ("@a\n@b(\n    1,\n)\ndef f():\n    x = 1\n", "f", [1]),
        ("@a\n# why\n@b\n# why\ndef f():\n    x = 1\n", "f", [1]),
        ("a = [\n    1,\n]\n\n@b\ndef f(): x = 1\n", "f", [5]),
        ("def g():\n    return 1\ndef f(): x = 1\n", "f", [3]),
        ("def f(\n    a,\n    b=(\n        1\n    ),\n) -> int:\n    x = 1\n", "f", [1]),
        ("def f(a,\n  b):\n    x = 1\n", "f", [1]),
        ("def f(a,\nb):\n    x = 1\ny = 2\n", "f", [1]),
        ("def f():\n    # c\n# dedented comment\n    x = 1\ny = 2\n", "f", [1]),
        ("def f():\n    s = '''\ndef f():\n    x = 2\n'''\n    x = 1\n", "f", [1]),
        ("def f():\n    s = '''\nat the margin\n'''\n    x = 1\nz = 3\n", "f", [1]),
        ("def f():\n    s = 1 + \\\n2\n    x = 1\n", "f", [1]),
        ('"""\ndef f():\n    x = 2\n"""\ndef f():\n    x = 1\n', "f", [5]),
        ('class C:\n    """\n    def f(self):\n        x = 2\n    """\n    def f(self):\n        x = 1\n', "C.f", [6]),
        ('class C:\n    """\ndef f(self):\n    x = 2\n    """\n    def f(self):\n        x = 1\n', "C.f", [6]),
        ("s = '''\nclass D:\n'''\nclass C:\n    def f(self): x = 1\n", "C.f", [5]),
        ("class C:\n\tdef f(self):\n\t\tx = 1\n\tdef g(self):\n\t\tpass\n", "C.f", [2]),
        ("def f():\r\n    x = 1\r\n\r\ndef g():\r\n    pass\r\n", "f", [1]),
        ("class C:\r\n    @a\r\n    def f(self):\r\n        '''\r\n        '''\r\n        x = 1\r\n", "C.f", [2]),
        ("y = 1\n\x0c\ndef f():\n    x = 1\n", "f", [3]),
        ("class C:\n    y = 1\n\x0c\n    def f(self):\n        x = 1\n\x0c\n    def g(self): pass\n", "C.f", [4]),
        ("\x0cdef f():\n    x = 1\n", "f", [1]),
        ("def f():\n    s = 'a\x0cb\x1cc\u2028d'\n    x = 1\n", "f", [1]),
        ("\ufeffdef f():\n    x = 1\n", "f", [1]),
        ("f = 1\n# def f(): x = 1\n", "f", []),
        ("define = 1\nclassic = 2\n", "f", []),
        ("", "f", []),
        ("class C:\n    @property\n    def p(self):\n        x = 1\n", "C.p", [2]),
        ("def f():\n    x = 1", "f", [1]),
        ("class C:\n    def f(self): x = 1\nclass C:\n    def f(self): x = 2\n", "C.f", [2, 4]),
        ("def f():\n    x = 1\n  \n        \ndef g(): pass\n", "f", [1]),
        ("match a:\n    case 1:\n        def f(): x = 1\n", "f", [3]),
        ("def f(a=lambda: (\n)): x = 1\n", "f", [1]),
        ("with a: pass\ndef f():\n    return {\n  1: 2\n}\ndef g(): pass\n", "f", [2]),
    ],
)
def test_functions_are_located(bench, text, qualname, lines):
    try:
        compile(text.encode(), "<text>", "exec")
    except SyntaxError:
        pytest.skip("not the syntax of this Python")
    assert lines_of(bench, text, qualname) == lines


def test_a_file_in_another_encoding(bench, declare):
    text = "# -*- coding: latin-1 -*-\ndef f():\n    s = 'é'\n    x = 1\n    return s, x\n"
    module = bench.module(text, encoding="latin-1")
    bench.apply(declare(Edit(f"{module.__name__}:f", replace="x = 1", code="x = 2")))
    assert module.f() == ("é", 2)


@pytest.mark.parametrize(
    "text",
    [
        "class C:\n\tdef f(self):\n\t\tx = 1\n\t\treturn x\n",
        "class C:\r\n    def f(self):\r\n        s = '''\r\n        '''\r\n        x = 1\r\n        return x\r\n",
        "class C:\n\x0c\n    def f(self):\n        x = 1\n        return x\n",
        "class C:\n  def f(self): x = 1; return x\n",
        "class C:\n    if 1:\n        def f(self):\n            x = 1\n            return x\n    else:\n        f = 1",
        "class C:\n    def f(self):\n        return 0\n\n    def f(self):\n        x = 1\n        return x\n",
        "from __future__ import annotations\nclass C:\n    def f(self) -> Nowhere:\n        x = 1\n        return x\n",
        "import os.path as p\nclass C:\n    def f(self):\n        x = 1\n        return len(p.join('', '')) + x\n",
        "class _C:\n    def f(self):\n        x = 1\n        self.__y = x\n        return self._C__y\nC = _C\n",
    ],
)
def test_odd_files_can_be_edited(bench, declare, text):
    module = bench.module(text)
    name = "_C" if "_C" in text else "C"
    bench.apply(declare(Edit(f"{module.__name__}:{name}.f", replace="x = 1", code="x = 2")))
    assert module.C().f() == 2


def test_a_module_with_bytecode_only_says_so(simple):
    file = simple.site / "deepspeed" / "m.py"
    py_compile.compile(str(file), cfile=str(file.with_suffix(".pyc")))
    file.unlink()
    result = simple.run("import dsfix, deepspeed.m as m; tell([m.f(1), outcomes(), reasons()])")
    assert result.value[:2] == [2, {"cure": "drifted"}]
    assert "has no readable source" in result.value[2]["cure"]
    assert len(result.warnings) == 1


def test_without_any_source_one_warning_is_enough(simple):
    simple.patch("other", 'PATCH = declare(Edit("deepspeed.m:f", replace="return y", code="return -y"))')
    file = simple.site / "deepspeed" / "m.py"
    py_compile.compile(str(file), cfile=str(file.with_suffix(".pyc")))
    file.unlink()
    shutil.rmtree(simple.site / "deepspeed-0.dist-info")  # as in a frozen program: the release is unknown, too
    result = simple.run("import dsfix, deepspeed.m as m; tell([m.f(1), outcomes()])")
    assert result.value == [2, {"cure": "drifted", "other": "drifted"}]
    (warning,) = result.warnings
    assert "reinstall DeepSpeed with its .py files" in warning
    assert "StrictError" in simple.run("import dsfix, deepspeed.m", code=1, DSFIX_STRICT="1").err


@pytest.mark.parametrize(
    "text", ["def f(x):\n    return x +\n", b"def f(x):\n    return '\xff'\n", b"\0", "def f(x):\n  x\n    y\n"]
)
def test_a_file_that_is_not_python_is_drift(bench, text):
    name = bench.write("")
    with open(module_file(name), "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ChangeRefused) as caught:
        verdict.places(Edit(f"{name}:f", replace="x = 1", code="x = 2"))
    assert caught.value.outcome is Outcome.DRIFTED


def test_the_verdict_imports_nothing_and_matches_the_engine(world):
    world.package(init="raise SystemExit", m="raise SystemExit\ndef f(x):\n    return x + 1\n", a__b="def f(): x = 1\n")
    result = world.run("""
        from dsfix.engine import verdict as judge
        from dsfix.patch import Edit
        seen = []
        for target, anchor in (("deepspeed.m:f", "x + 1"), ("deepspeed.a.b:f", "x = 1"), ("deepspeed.m:f", "x + 2")):
            try:
                block, places = judge.places(Edit(target, replace=anchor, code="0"))
                seen.append([block.first, len(places)])
            except Exception as error:
                seen.append(str(error))
        import sys
        tell([seen, [name for name in sys.modules if name.startswith("deepspeed")]])
    """)
    assert result.value == [[[2, 1], [1, 1], "`x + 2` occurs 0 times in f, expected 1"], []]


LIBRARY = ["argparse", "ast", "asyncio.events", "dataclasses", "functools", "inspect", "logging", "threading"]


@pytest.mark.parametrize("name", LIBRARY)
def test_every_function_of_real_modules_compiles_to_itself(name):
    module = importlib.import_module(name)
    refused = []
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    for holder, prefix in [(module, ""), *((each, each.__qualname__ + ".") for each in classes)]:
        for key, value in vars(holder).items():
            here = inspect.isfunction(value) and value.__module__ == name and value.__qualname__ == prefix + key
            if here and os.path.samefile(_file(value.__code__), module.__file__):
                try:
                    code = rewrite.find_function(module, prefix + key).__code__
                    block = source.block_at(code.co_filename, code.co_firstlineno)
                    rewrite.imports_of(block, prefix + key, code)
                except ChangeRefused as error:
                    refused.append((prefix + key, str(error)))
    assert refused == []


def _file(code):
    return code.co_filename if os.path.exists(code.co_filename) else __file__


def test_a_package_that_has_lost_a_directorys_init_has_no_such_module(bench):
    name = bench.write("", "half_installed.__init__")
    bench.write("", "half_installed.part.module")
    assert module_file(f"{name.partition('.')[0]}.part.module") is None
