"""The change Edit: what can be edited, and what must stay unchanged."""

import asyncio
import inspect
import itertools
import pickle
import sys
import traceback

import pytest

from dsfix.outcome import Outcome
from dsfix.patch import Edit

PLAIN = """\
    def f(x):
        y = x + 1
        z = y * 2
        return z
    """


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"after": "y = x + 1", "code": "y += 10"}, 24),
        ({"before": "z = y * 2", "code": "y += 10"}, 24),
        ({"replace": "z = y * 2", "code": "z = y * 3"}, 6),
        ({"replace": "y * 2", "code": "y * 3"}, 6),
        ({"replace": "y = x + 1\nz = y * 2", "code": "z = 7"}, 7),
        ({"after": "y = x + 1\nz = y * 2", "code": "z += 1\nz += 1"}, 6),
        ({"before": "y = x + 1", "code": "if x == 1:\n    return 'early'"}, "early"),
        ({"before": "return z", "code": "for _ in range(3):\n    z += 1"}, 7),
        ({"replace": "return z", "code": "try:\n    return z\nfinally:\n    del y"}, 4),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_edit_changes_its_function_and_is_reverted(bench, declare, edit, expected):
    module = bench.module(PLAIN)
    original = module.f.__code__
    engine = bench.apply(declare(Edit(f"{module.__name__}:f", **edit)))
    assert module.f(1) == expected
    engine.revert("p0")
    assert module.f(1) == 4
    assert module.f.__code__ is original


@pytest.mark.parametrize(
    ("body", "edit", "expected"),
    [
        ("if x:\n    a = 1\n    b = 2\nreturn x", {"after": "if x:\n    ...", "code": "x = 5"}, 5),
        ("with c():\n    x = 2\nreturn x", {"before": "with c():\n    ...", "code": "return 9"}, 9),
        ("for _ in range(2):\n    x += 1\nreturn x", {"replace": "for _ in range(2):\n    ...", "code": "x = 0"}, 0),
        ("x += 1\nx += 1\nreturn x", {"replace": "x += 1", "code": "x += 5", "count": 2}, 11),
        ("x += 1\nx += 1\nreturn x", {"after": "x += 1", "code": "x *= 2", "count": 2}, 10),
        ("try:\n    return 1 // 0\nexcept Exception:\n    x = 3\nreturn x", {"after": "x = 3", "code": "x = 4"}, 4),
        ("while x < 9:\n    x += 1\nelse:\n    x = 0\nreturn x", {"replace": "x = 0", "code": "x = 8"}, 8),
        ("if x > 5:\n    x = 1\nreturn x", {"replace": "if x > 5:\n    x = 1", "code": "x = 1"}, 1),
        ("x.bit_length()\nreturn x", {"replace": "x.bit_length()", "code": "if x:\n    x = 3"}, 3),
        ("return abs(x)", {"replace": "abs(x)", "code": "x"}, 1),
        ("return abs(x)", {"replace": "abs(x)", "code": "-abs(x)"}, -1),
        ("x = x + 1\nx = 5\nreturn x", {"replace": "x = 5", "code": "pass"}, 2),
        ("return {'a': x, **{'b': 1}}['a']", {"replace": "x", "code": "x + 1"}, 2),
        ("return f'{x}!'", {"replace": "x", "code": "x + 1"}, "2!"),
        ("'''a docstring'''\nx = 1\nreturn x", {"replace": "x = 1", "code": "x = 3"}, 3),
        ("global g\ng = x\nreturn g", {"replace": "g = x", "code": "g = x + 1"}, 2),
        ("s = '''\none\n  two'''\nreturn len(s)", {"before": "return len(s)", "code": "s += '!'"}, 11),
        ("return (lambda v: v + 1)(x)", {"replace": "v + 1", "code": "v + 2"}, 3),
        ("return [v + 1 for v in (x,)]", {"replace": "v + 1", "code": "v + 2"}, [3]),
    ],
)
def test_anchors(bench, declare, body, edit, expected):
    lines = "def f(x):\n" + "".join(
        line + "\n" if line == "one" or line.startswith("  two") else f"    {line}\n" for line in body.split("\n")
    )
    module = bench.module("from contextlib import nullcontext as c\n" + lines)
    original = module.f.__code__
    engine = bench.apply(declare(Edit(f"{module.__name__}:f", **edit)))
    assert module.f(1) == expected
    engine.revert("p0")
    assert module.f.__code__ is original


KINDS = """\
    import contextlib, functools

    class Base:
        def m(self):
            return "base"

    class C(Base):
        __secret = 1
        K = 3

        def __init__(self):
            self._v = 5

        def m(self):
            x = 1
            return (super().m(), __class__.__name__, x)

        def mangled(self):
            x = 1
            self.__hidden = self.__secret
            return (self.__hidden, x)

        @staticmethod
        def s(a, *, b=2):
            x = 1
            return a + b + x

        @classmethod
        def c(cls, a=4):
            x = 1
            return (cls.__name__, a + x)

        @property
        def p(self):
            x = 1
            return self._v + x

        @functools.cached_property
        def cached(self):
            x = 1
            return x

        @functools.lru_cache(maxsize=None)
        def memo(self):
            x = 1
            return x

        class Inner:
            def deep(self):
                x = 1
                return x

    def generator():
        x = 1
        yield x
        yield x + 1

    async def coroutine():
        x = 1
        return x

    async def async_generator():
        x = 1
        yield x

    @contextlib.contextmanager
    def context():
        x = 1
        yield x

    def hidden(function):
        def call(*args, **kwargs):
            return ("hidden", function(*args, **kwargs))
        return call

    def polite(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return ("polite", function(*args, **kwargs))
        return call

    class Decorator:
        def __init__(self, function):
            self.function = function
        def __call__(self, *args):
            return ("class", self.function(*args))

    class Slotted:
        def __init__(self, argument):
            self.argument = argument
        def __call__(self, function):
            return functools.partial(function, self.argument)

    @hidden
    def behind_a_closure():
        x = 1
        return x

    @polite
    @hidden
    @polite
    def behind_three():
        x = 1
        return x

    @Decorator
    def behind_a_class():
        x = 1
        return x

    @Slotted(
        argument=7,
    )
    def behind_a_partial(a):
        x = 1
        return (a, x)

    @functools.singledispatch
    def dispatched(a):
        x = 1
        return x

    def defaults(a=[1], *args, b="b", **kwargs) -> int:
        x = 1
        return (a, b, x)

    def closing():
        x = 1
        def inner():
            return x
        return inner
    """


def _all(iterator):
    async def collect():
        return [value async for value in iterator]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("target", "use", "expected"),
    [
        ("C.m", lambda m: m.C().m(), ("base", "C", 9)),
        ("C.mangled", lambda m: m.C().mangled(), (1, 9)),
        ("C.s", lambda m: (m.C.s(1), m.C().s(1, b=0)), (12, 10)),
        ("C.c", lambda m: (m.C.c(), m.C().c(0)), (("C", 13), ("C", 9))),
        ("C.p", lambda m: m.C().p, 14),
        ("C.cached", lambda m: m.C().cached, 9),
        ("C.memo", lambda m: m.C().memo(), 9),
        ("C.Inner.deep", lambda m: m.C.Inner().deep(), 9),
        ("generator", lambda m: list(m.generator()), [9, 10]),
        ("coroutine", lambda m: asyncio.run(m.coroutine()), 9),
        ("async_generator", lambda m: _all(m.async_generator()), [9]),
        ("context", lambda m: m.context().__enter__(), 9),
        ("behind_a_closure", lambda m: m.behind_a_closure(), ("hidden", 9)),
        ("behind_three", lambda m: m.behind_three(), ("polite", ("hidden", ("polite", 9)))),
        ("behind_a_class", lambda m: m.behind_a_class(), ("class", 9)),
        ("behind_a_partial", lambda m: m.behind_a_partial(), (7, 9)),
        ("dispatched", lambda m: m.dispatched(0), 9),
        ("defaults", lambda m: m.defaults(), ([1], "b", 9)),
        ("closing", lambda m: m.closing()(), 9),
    ],
)
def test_every_kind_of_function_can_be_edited_and_restored(bench, declare, target, use, expected):
    module = bench.module(KINDS)
    before = use(module)
    raw = _raw(module, target)
    source = inspect.getsource(module)
    engine = bench.apply(declare(Edit(f"{module.__name__}:{target}", replace="x = 1", code="x = 9")))
    if target == "C.memo":
        module.C.memo.cache_clear()
    assert use(module) == expected
    assert _raw(module, target) is raw
    assert inspect.getsource(module) == source
    engine.revert("p0")
    if target == "C.memo":
        module.C.memo.cache_clear()
    assert use(module) == before


def _raw(module, target):
    holder = module
    for part in target.split("."):
        holder = vars(holder)[part]
    return holder


def test_every_name_for_the_function_sees_the_edit(bench, declare):
    module = bench.module(KINDS)
    early = module.C().s, module.C().m, module.defaults, [module.behind_a_closure]
    other = bench.module(f"from {module.__name__} import defaults as taken, C\nbound = C().m\n")
    edits = [Edit(f"{module.__name__}:{name}", replace="x = 1", code="x = 9") for name in ("C.m", "defaults")]
    bench.apply(declare(*edits))
    assert early[1]()[2] == early[2]()[2] == other.taken()[2] == other.bound()[2] == 9


def test_defaults_annotations_and_identity_are_kept(bench, declare):
    module = bench.module(KINDS)
    function, default = module.defaults, module.defaults.__defaults__[0]
    signature, first = inspect.signature(function), function.__code__.co_firstlineno
    source, doc = inspect.getsource(function), function.__doc__
    bench.apply(declare(Edit(f"{module.__name__}:defaults", replace="x = 1", code="x = 9")))
    assert module.defaults is function
    assert function.__defaults__[0] is default
    assert function.__kwdefaults__ == {"b": "b"}
    assert function.__annotations__ == {"return": int}
    assert (inspect.signature(function), function.__code__.co_firstlineno) == (signature, first)
    assert (inspect.getsource(function), function.__doc__) == (source, doc)
    assert (function.__qualname__, function.__code__.co_filename) == ("defaults", module.__file__)
    if sys.version_info >= (3, 11):
        assert function.__code__.co_qualname == "defaults"


def test_pickles_of_functions_and_bound_methods_survive(bench, declare):
    module = bench.module(KINDS)
    edits = [Edit(f"{module.__name__}:{name}", replace="x = 1", code="x = 9") for name in ("C.m", "defaults")]
    bench.apply(declare(*edits))
    assert pickle.loads(pickle.dumps(module.defaults)) is module.defaults
    assert pickle.loads(pickle.dumps(module.C().m))()[2] == 9


LINES = '''\
import functools

TEXT = """
def f(x):
    y = 1
"""


def decorate(*arguments):
    def decorator(function):
        return function
    return decorator


class C:
    @decorate(
        1,
        "two",
    )
    # a comment
    @decorate()
    def f(
        self,
        x,
    ):
        """Docstring.

  dedented text
        """
        y = x
        s = """
not indented
    """
        y = len(s) and y
        return 1 / y
'''


@pytest.mark.parametrize("name", ["before", "after"])
def test_tracebacks_show_the_lines_of_the_file(bench, declare, name):
    module = bench.module(LINES)
    number = next(n for n, line in enumerate(LINES.splitlines(), 1) if "1 / y" in line)
    for anchor, raising, line in (
        ("y = x", "pass", number),  # raised below the edit, and by the inserted code at the anchor's line
        ("y = len(s) and y", "raise ZeroDivisionError", number - 1),
    ):
        engine = bench.apply(declare(Edit(f"{module.__name__}:C.f", code=raising, **{name: anchor})))
        with pytest.raises(ZeroDivisionError) as caught:
            module.C().f(0)
        last = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (last.filename, last.lineno, last.line) == (module.__file__, line, LINES.splitlines()[line - 1].strip())
        engine.revert("p0")


@pytest.mark.parametrize(
    ("text", "edit", "outcome", "words"),
    [
        (PLAIN, {"replace": "y = x + 3", "code": "y = 0"}, Outcome.DRIFTED, "occurs 0 times"),
        (PLAIN, {"replace": "x", "code": "X", "count": 2}, Outcome.DRIFTED, "occurs 1 time in f, expected 2"),
        ("def f(x):\n    y = 1\n    y = 1\n", {"replace": "y = 1", "code": "y = 2"}, Outcome.DRIFTED, "occurs 2 times"),
        (PLAIN, {"replace": "y = x + 1", "code": "y = x + 1; y = 0", "count": 2}, Outcome.DRIFTED, "occurs 1 time"),
        ("def g(): pass\n", {"replace": "y = 1", "code": "y = 2"}, Outcome.DRIFTED, "no function f"),
        ("f = len\ng = 'def f'", {"replace": "y = 1", "code": "y = 2"}, Outcome.DRIFTED, "no function f"),
        ("def f(x):\n    y = 2\n", {"replace": "y = 1", "code": "y = 2"}, Outcome.ALREADY_FIXED, "`y = 2`"),
        ("def f(x):\n    y = 1\n    z()\n", {"after": "y = 1", "code": "z()"}, Outcome.ALREADY_FIXED, "`z()`"),
        ("def f(x):\n    z()\n    y = 1\n", {"before": "y = 1", "code": "z()"}, Outcome.ALREADY_FIXED, "`z()`"),
        ("def f(x):\n    return g(h(x))\n", {"replace": "h(x)", "code": "g(h(x))"}, Outcome.ALREADY_FIXED, "g(h(x))"),
        (
            "def f(x):\n    if x:\n        y = 1\n",
            {"replace": "y = 1", "code": "if x:\n    y = 1"},
            Outcome.ALREADY_FIXED,
            "`if x:",
        ),
        (
            "def f(x):\n    y = 1\n    z()\n    y = 1\n",
            {"after": "y = 1", "code": "z()", "count": 2},
            Outcome.DRIFTED,
            "its patched form occurs 1 time",
        ),
        (
            "def f(x):\n    y = 1\n    y = 2\n",
            {"replace": "y = 1", "code": "y = 2"},
            Outcome.DRIFTED,
            "its patched form",
        ),
        (PLAIN, {"after": "y = x + 1", "code": "yield y"}, Outcome.FAILED, "a different kind of function"),
        (PLAIN, {"after": "y = x + 1", "code": "await x"}, Outcome.FAILED, "SyntaxError"),
        (PLAIN, {"after": "y = x + 1", "code": "if:"}, Outcome.FAILED, "SyntaxError"),
        (PLAIN, {"replace": "x + 1", "code": "y = 1"}, Outcome.DRIFTED, "`x + 1` occurs 0 times"),
    ],
)
def test_edits_that_do_not_fit_change_nothing(bench, declare, text, edit, outcome, words):
    module = bench.module(text)
    before = getattr(getattr(module, "f", None), "__code__", None)
    engine = bench.engine(declare(Edit(f"{module.__name__}:f", **edit)))
    state = engine.states["p0"]
    assert state.outcome is outcome
    assert words in state.reason
    assert getattr(getattr(module, "f", None), "__code__", None) is before


def test_a_cell_variable_may_be_added(bench, declare):
    module = bench.module(PLAIN)
    bench.apply(declare(Edit(f"{module.__name__}:f", after="y = x + 1", code="y = (lambda: x + 10)()")))
    assert module.f(1) == 22


@pytest.mark.parametrize(("there", "wanted"), [("super().__init__()", "1"), ("1", "super().__init__()")])
def test_an_edit_that_changes_the_free_variables_fails(bench, declare, there, wanted):
    module = bench.module(f"class C:\n    def f(self):\n        x = {there}\n        return x\n")
    before = module.C.f.__code__
    engine = bench.engine(declare(Edit(f"{module.__name__}:C.f", replace=f"x = {there}", code=f"x = {wanted}")))
    assert engine.states["p0"].outcome is Outcome.FAILED
    assert "co_freevars" in engine.states["p0"].reason
    assert module.C.f.__code__ is before


NESTED = """\
    def outer(a):
        b = 1
        def inner(c):
            d = a + c
            return d
        class K:
            def inner_too(self):
                return a
        return inner

    made = outer(10)
    """


def test_a_nested_function_is_edited_in_existing_and_new_closures(bench, declare):
    module = bench.module(NESTED)
    engine = bench.apply(declare(Edit(f"{module.__name__}:outer.<locals>.inner", replace="a + c", code="a * c")))
    late = module.outer(10)
    assert (module.made(3), late(3)) == (30, 30)
    engine.revert("p0")
    assert (module.made(3), late(3), module.outer(10)(3)) == (13, 13, 13)


@pytest.mark.parametrize("order", list(itertools.permutations(["p0", "p1", "p2"])))
def test_closures_follow_through_edits_of_the_function_around_them(bench, declare, order):
    module = bench.module(NESTED)
    name = module.__name__
    patches = {
        "p0": declare(Edit(f"{name}:outer", replace="b = 1", code="b = 2")),
        "p1": declare(Edit(f"{name}:outer.<locals>.inner", replace="a + c", code="a * c")),
        "p2": declare(Edit(f"{name}:outer.<locals>.inner", before="return d", code="d += 100")),
    }
    original, closures, engines = module.outer.__code__, [module.made], {}

    def check():
        wanted = (30 if "p1" in engines else 13) + (100 if "p2" in engines else 0)
        assert [closure(3) for closure in closures] == [wanted] * len(closures)

    for id in order:
        engines[id] = bench.apply(patches[id], first=int(id[1]))
        closures.append(module.outer(10))
        check()
    for id in order:
        engines.pop(id).revert(id)
        check()
    assert module.outer.__code__ is original


@pytest.mark.parametrize(("names", "count"), [("inner", 0), ("two", 2), ("K", 1)])
def test_a_nested_target_has_to_be_one_function(bench, declare, names, count):
    module = bench.module(
        "def outer():\n    def two(): x = 1\n    class K:\n        def two(self): x = 1\n    return two\n"
    )
    edit = Edit(f"{module.__name__}:outer.<locals>.{names}", replace="x = 1", code="x = 2")
    state = bench.engine(declare(edit)).states["p0"]
    assert state.outcome is Outcome.DRIFTED
    assert (f"{count} definitions" if count != 1 else "is a class") in state.reason


SEVERAL = """\
    def f(x):
        log = []
        log.append("a")
        log.append("b")
        for i in range(2):
            log += [i]
        return log
    """
SEVERAL_EDITS = [
    {"after": "log.append('a')", "code": "log.append('after a')"},
    {"after": "log.append('a')", "code": "log.append('after a, too')"},
    {"replace": "log.append('b')", "code": "log.append('B')"},
    {"replace": "range(2)", "code": "range(3)"},
]


def _orders():
    for size in range(1, len(SEVERAL_EDITS) + 1):
        for numbers in itertools.combinations(range(len(SEVERAL_EDITS)), size):
            orders = list(itertools.permutations(numbers))
            for at, order in enumerate(orders):
                yield order, orders[(7 * at + 3) % len(orders)]


def test_several_patches_of_one_function_in_all_orders(bench, declare):
    module = bench.module(SEVERAL)
    original, plain = module.f.__code__, module.f(0)
    patches = [declare(Edit(f"{module.__name__}:f", **edit)) for edit in SEVERAL_EDITS]
    results = {}
    for order, back in _orders():
        engines = {number: bench.apply(patches[number], first=number) for number in order}
        result = module.f(0)
        assert result != plain
        assert results.setdefault(frozenset(order), result) == result, order
        on = set(order)
        for number in back:
            engines[number].revert(f"p{number}")
            on.remove(number)
            assert module.f(0) == results.get(frozenset(on), plain), (order, back)
        assert module.f.__code__ is original
    assert len(set(map(tuple, results.values()))) == 15


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"replace": "y = x + 1", "code": "y = 11"}, {"replace": "y = x + 1", "code": "y = 12"}),
        ({"replace": "y = x + 1", "code": "y = 11"}, {"replace": "x + 1", "code": "x + 22"}),
        ({"replace": "y = x + 1", "code": "y = 11"}, {"after": "y = x + 1", "code": "y += 2"}),
        ({"replace": "y = x + 1\nz = y * 2", "code": "z = 11"}, {"before": "z = y * 2", "code": "y = 12"}),
        ({"replace": "x + 1", "code": "x + 33"}, {"replace": "x + 1", "code": "x + 22"}),
    ],
)
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize("ids", [(0, 1), (1, 0)])
def test_two_patches_of_the_same_statement_clash_and_the_first_stays(bench, declare, one, other, swapped, ids):
    module = bench.module(PLAIN)
    one, other = (declare(Edit(f"{module.__name__}:f", **edit)) for edit in ((other, one) if swapped else (one, other)))
    engine = bench.apply(one, first=ids[0])
    with_one = module.f(1)
    state = bench.engine(other, first=ids[1]).states[f"p{ids[1]}"]
    assert state.outcome is Outcome.CONFLICT
    assert "change the same statement" in state.reason
    assert with_one != 4
    assert module.f(1) == with_one
    engine.revert(f"p{ids[0]}")
    assert module.f(1) == 4


def test_a_function_that_another_tool_has_changed_is_a_conflict(bench, declare):
    module = bench.module(PLAIN)
    edit = Edit(f"{module.__name__}:f", replace="y = x + 1", code="y = 0")

    def foreign(x):
        return "foreign"

    module.f.__code__ = foreign.__code__
    state = bench.engine(declare(edit)).states["p0"]
    assert (state.outcome, module.f(1)) == (Outcome.CONFLICT, "foreign")


def test_later_changes_by_another_tool_are_not_reverted(bench, declare):
    module = bench.module(PLAIN + "\n    def g(x):\n        y = x + 1\n        return y\n")
    edits = [Edit(f"{module.__name__}:{name}", replace="y = x + 1", code="y = 0") for name in "fg"]
    engine = bench.apply(declare(*edits))

    def foreign(x):
        return "foreign"

    module.g.__code__ = foreign.__code__
    engine.revert("p0")
    state = engine.states["p0"]
    assert (module.f(1), module.g(1)) == (4, "foreign")
    assert state.outcome is Outcome.FAILED
    assert "could not be reverted" in state.reason
