"""The changes Replace and Provide."""

import sys
from types import ModuleType

import pytest
import wrapt

from dsfix.outcome import Outcome
from dsfix.patch import Provide, Replace

TEXT = """\
    FLAG = True
    NOTHING = None

    def f(x):
        return x + 1

    class C:
        kind = "c"

        def m(self, x):
            return x + 1

        @staticmethod
        def s(x):
            return x + 1

        @classmethod
        def c(cls, x):
            return (cls.__name__, x + 1)

        @property
        def p(self):
            return 1

        def __private(self):
            return 1

        def public(self):
            return self.__private()
    """


def ten_more(wrapped, instance, args, kwargs):
    result = wrapped(*args, **kwargs)
    return (*result[:-1], result[-1] + 10) if isinstance(result, tuple) else result + 10


def replacement(original):
    def replaced(*args):
        return original(*args) + 10

    return replaced


def Wrap(target, wrapper):
    return Replace(target, lambda original: wrapt.FunctionWrapper(original, wrapper))


def ready_made(x):
    return x + 11


@pytest.fixture
def changes():
    """name -> change(target) of a function, each of which adds ten."""
    return {
        "replace": lambda target: Replace(target, replacement),
        "ready-made": lambda target: Replace(target, lambda original: ready_made),
        "wrap": lambda target: Wrap(target, ten_more),
    }


@pytest.mark.parametrize("kind", ["replace", "ready-made", "wrap"])
def test_every_alias_is_replaced_and_restored(bench, declare, changes, kind):
    module = bench.module(TEXT)
    name = module.__name__
    original = module.f
    early = bench.module(f"from {name} import f\nfrom {name} import f as g\ntable = [f]\n")
    engine = bench.apply(declare(changes[kind](f"{name}:f")))
    late = bench.module(f"from {name} import f as h\n")
    assert [f(1) for f in (module.f, early.f, early.g, late.h)] == [12] * 4
    assert early.table[0] is original
    engine.revert("p0")
    assert [f is original for f in (module.f, early.f, early.g, late.h)] == [True] * 4
    assert ready_made(1) == 12


def test_a_replacement_defined_elsewhere_keeps_its_other_aliases(bench, declare):
    module = bench.module("def bad(): return 1\ndef good(): return 2\n")
    user = bench.module(f"from {module.__name__} import bad, good\n")
    engine = bench.apply(declare(Replace(f"{module.__name__}:bad", lambda original: module.good)))
    assert (module.bad(), user.bad(), user.good()) == (2, 2, 2)
    engine.revert("p0")
    assert (module.bad(), user.bad(), user.good(), module.good()) == (1, 1, 2, 2)


@pytest.mark.parametrize(("name", "value"), [("FLAG", False), ("NOTHING", 5)])
def test_shared_constants_of_other_modules_are_left_alone(bench, declare, name, value):
    module, other = bench.module(TEXT), bench.module("FLAG = MINE = True\nNOTHING = NONE = None\n")
    engine = bench.apply(declare(Replace(f"{module.__name__}:{name}", lambda original: value)))
    assert getattr(module, name) == value
    assert (other.FLAG, other.MINE, other.NOTHING, other.NONE) == (True, True, None, None)
    assert module.__cached__ is not False
    engine.revert("p0")
    assert getattr(module, name) is getattr(other, name)


@pytest.mark.parametrize(
    ("target", "use", "expected"),
    [
        ("C.m", lambda m: (m.C().m(1), m.C.m(m.C(), 1)), (12, 12)),
        ("C.s", lambda m: (m.C.s(1), m.C().s(1)), (12, 12)),
        ("C.c", lambda m: (m.C.c(1), m.C().c(1)), (("C", 12), ("C", 12))),
        ("C.__private", lambda m: m.C().public(), 11),
    ],
)
def test_wrapping_methods(bench, declare, target, use, expected):
    module = bench.module(TEXT)
    before, raw = use(module), dict(vars(module.C))
    engine = bench.apply(declare(Wrap(f"{module.__name__}:{target}", ten_more)))
    assert use(module) == expected
    engine.revert("p0")
    assert use(module) == before
    assert {n: v for n, v in vars(module.C).items() if not n.startswith("__")} == {
        n: v for n, v in raw.items() if not n.startswith("__")
    }


@pytest.mark.parametrize(
    ("target", "factory", "use", "expected"),
    [
        ("C.kind", lambda o: o + "!", lambda m: m.C().kind, "c!"),
        ("C", lambda o: type("D", (o,), {}), lambda m: m.C.__name__, "D"),
        ("C.p", lambda o: property(lambda self: o.fget(self) + 1), lambda m: m.C().p, 2),
    ],
)
def test_classes_and_class_attributes_can_be_replaced(bench, declare, target, factory, use, expected):
    module = bench.module(TEXT)
    before = use(module)
    engine = bench.apply(declare(Replace(f"{module.__name__}:{target}", factory)))
    assert use(module) == expected
    engine.revert("p0")
    assert use(module) == before


def test_a_target_that_another_package_has_replaced_is_a_conflict(bench, declare, changes):
    for kind, make in changes.items():
        module, stranger = bench.module(TEXT), bench.module("def mine(x): return 'mine'\n")
        module.f = stranger.mine
        state = bench.engine(declare(make(f"{module.__name__}:f"))).states["p0"]
        assert (kind, state.outcome, module.f) == (kind, Outcome.CONFLICT, stranger.mine)
        assert f"{stranger.__name__}.mine" in state.reason


@pytest.mark.parametrize("target", ["g", "C.n", "D.m"])
def test_a_missing_target_is_drifted(bench, declare, changes, target):
    module = bench.module(TEXT + "\n    # g, n and D.m are gone\n")
    before = dict(vars(module))
    for make in changes.values():
        state = bench.engine(declare(make(f"{module.__name__}:{target}"))).states["p0"]
        assert (state.outcome, dict(vars(module))) == (Outcome.DRIFTED, before)
        assert "does not exist" in state.reason


def test_attributes_set_since_are_not_restored(bench, declare):
    module = bench.module(TEXT)
    engine = bench.apply(declare(Wrap(f"{module.__name__}:f", ten_more)))
    module.f = mine = lambda x: x
    engine.refresh()
    assert engine.states["p0"].outcome is Outcome.CONFLICT
    engine.revert("p0")
    assert module.f is mine
    assert engine.states["p0"].outcome is Outcome.DISABLED


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_wrappers_of_one_function(bench, declare, order):
    module = bench.module(TEXT)
    original = module.f
    engine = bench.apply(*(declare(Wrap(f"{module.__name__}:f", ten_more)) for _ in range(2)))
    assert module.f(1) == 22
    for number in order:
        engine.revert(f"p{number}")
    outcomes = [engine.states[f"p{number}"].outcome for number in order]
    if order == (1, 0):
        assert (module.f, outcomes) == (original, [Outcome.DISABLED] * 2)
    else:  # the inner one cannot be removed, and says so
        assert outcomes == [Outcome.FAILED, Outcome.DISABLED]
        assert "wrapped again since" in engine.states["p0"].reason


def test_provide_adds_a_name_and_removes_it(bench, declare):
    module = bench.module(TEXT)
    engine = bench.apply(declare(Provide(module.__name__, "lost", lambda m: m.f(1))))
    assert module.lost == 2
    engine.revert("p0")
    assert not hasattr(module, "lost")


def test_an_existing_name_is_already_fixed(bench, declare):
    module = bench.module(TEXT)
    state = bench.engine(declare(Provide(module.__name__, "f", lambda m: 1))).states["p0"]
    assert (state.outcome, callable(module.f)) == (Outcome.ALREADY_FIXED, True)
    assert f"{module.__name__} has f" in state.reason


def test_a_factory_that_raises_leaves_everything_as_it_was(bench, declare):
    def broken(original):
        raise OSError("no")

    module = bench.module(TEXT)
    before = dict(vars(module))
    for change in (Replace(f"{module.__name__}:f", broken), Provide(module.__name__, "new", broken)):
        state = bench.engine(declare(Wrap(f"{module.__name__}:C.m", ten_more), change)).states["p0"]
        assert (state.outcome, state.reason) == (Outcome.FAILED, "OSError: no")
        assert dict(vars(module)) == before
        assert module.C().m(1) == 2


def test_modules_that_raise_on_attribute_access_are_skipped(bench, declare, monkeypatch):
    class Resists(ModuleType):
        def __getattr__(self, name):
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "standin_resists", Resists("standin_resists"))
    monkeypatch.setitem(sys.modules, "standin_none", None)
    monkeypatch.setitem(sys.modules, "standin_object", object())
    module = bench.module(TEXT)
    bench.apply(declare(Wrap(f"{module.__name__}:f", ten_more)))
    assert module.f(1) == 12
