"""A patch with several changes is applied completely or not at all, wherever it fails."""

import pytest

M = """\
    import keep
    keep.modules.append(__import__("sys").modules[__name__])

    def hidden(function):
        def call(*args):
            return function(*args)
        return call

    @hidden
    def edited(x):
        y = x + 1
        return y

    def outer():
        def inner(x):
            y = x + 1
            return y
        return inner

    made = outer()

    class C:
        def wrapped(self, x):
            return x + 1

    def replaced(x):
        return x + 1

    def values():
        return [edited(1), made(1), outer()(1), C().wrapped(1), replaced(1), keep.alias(1), "lost" in globals()]
    """
ORIGINAL, PATCHED = [2, 2, 2, 2, 2, 2, False], [3, 3, 3, 3, 3, 3, True]

PATCH = """
def more(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs) + 1

def other(original):
    return lambda x: original(x) + 1

def changes(module):
    return (
        Edit(f"{module}:edited", replace="y = x + 1", code="y = x + 2"),
        Edit(f"{module}:outer.<locals>.inner", replace="x + 1", code="x + 2"),
        Wrap(f"{module}:C.wrapped", more),
        Replace(f"{module}:replaced", other),
        Provide(module, "lost", lambda module: 1),
    )
"""

KEEP = """\
    modules = []

    def alias(x):
        import sys
        return sys.modules["deepspeed.m"].replaced(x) if "deepspeed.m" in sys.modules else modules[-1].replaced(x)
    """


@pytest.fixture
def both(world):
    def make(extra="", second=M):
        world.module("keep", KEEP)
        world.package(m=M, n=second)
        world.patch("cure", PATCH + f"PATCH = declare(*changes('deepspeed.m'), {extra or '*changes(chr(0))'})")
        return world

    return make


@pytest.mark.parametrize(
    "change",
    [
        'Edit("deepspeed.n:edited", replace="nowhere", code="x")',
        'Edit("deepspeed.n:gone", replace="y = x + 1", code="x")',
        'Edit("deepspeed.gone:edited", replace="y = x + 1", code="x")',
        'Edit("deepspeed.n:edited", replace="x + 2", code="x + 1")',  # this half of the fix is in the source
        'Wrap("deepspeed.n:gone", more)',
        'Edit("deepspeed.m:edited", replace="nowhere", code="x")',
    ],
)
def test_a_patch_that_cannot_be_completed_is_not_started(both, change):
    world = both(change)
    result = world.run(
        "import dsfix, deepspeed.m as m; a = m.values(); import deepspeed.n; tell([a, m.values(), outcomes()])"
    )
    assert result.value == [ORIGINAL, ORIGINAL, {"cure": "drifted"}]
    assert len(result.warnings) == 1


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ('Edit("deepspeed.n:edited", replace="y = x + 1", code="yield x")', "failed"),
        ('Edit("deepspeed.n:edited", replace="y = x + 1", code="break")', "failed"),
        ('Wrap("deepspeed.n:C.values", more)', "drifted"),
        ('Replace("deepspeed.n:replaced", lambda original: 1 / 0)', "failed"),
        ('Provide("deepspeed.n", "new", lambda module: 1 / 0)', "failed"),
    ],
)
@pytest.mark.parametrize("order", ["m, deepspeed.n", "n, deepspeed.m"])
def test_a_patch_that_fails_while_being_applied_is_undone(both, change, outcome, order):
    world = both(change)
    result = world.run(f"""
        import dsfix, keep, deepspeed.{order}
        tell([deepspeed.m.values(), deepspeed.n.values()[:-2], outcomes()])
    """)
    assert result.value == [ORIGINAL, ORIGINAL[:-2], {"cure": outcome}]
    assert len(result.warnings) == 1


def test_two_modules_are_pending_until_both_are_imported(both):
    world = both("*changes('deepspeed.n')")
    result = world.run("""
        import dsfix, deepspeed.m as m
        first = [m.values(), outcomes(), reasons()["cure"]]
        import deepspeed.n as n
        second = [m.values(), n.values(), outcomes()]
        dsfix.revert("cure")
        tell([first, second, m.values(), n.values()])
    """)
    assert result.value == [
        [PATCHED, {"cure": "pending"}, "waits for the import of deepspeed.n"],
        [PATCHED, PATCHED, {"cure": "applied"}],
        ORIGINAL,
        ORIGINAL,
    ]


# nothing is known of the source, or everything
LEARNED = pytest.mark.parametrize("known", [False, True], ids=["learns", "knows"])
FAULTS = """
    import dsfix.process, functools, json, linecache, logging, os, sys, tempfile
    import keep

    ROOT = os.path.join(os.path.dirname(dsfix.__file__), "engine")
    said = []

    class Listens(logging.Handler):
        def emit(self, record):
            said.append(record.levelname)

    logging.getLogger().addHandler(Listens())

    # the import system calls these: what they call is what may fail
    OUTSIDE = {"_before", "imported", "find_spec", "exec_module", "create_module", "__getattr__", "__init__"}

    @functools.lru_cache(maxsize=None)
    def watched(path):
        folder, name = os.path.split(path)
        return name if folder == ROOT and name != "garbage.py" else None  # that one calls nothing but gc

    def tracer(act, lines):  # `act` at every call, or with `lines` at every line of these files but a bare return
        def trace(frame, event, argument):
            code = frame.f_code
            name = watched(code.co_filename)
            if name is None:
                return None
            if event == ("line" if lines else "call") and code.co_name not in OUTSIDE:
                if not (lines and linecache.getline(code.co_filename, frame.f_lineno).strip().startswith("return ")):
                    act((name, code.co_name, frame.f_lineno))
            return trace if name in lines else None
        return trace

    def in_a_child(work):
        if not KNOWN:  # what one child learns is not known to the next
            os.environ["DSFIX_CACHE"] = tempfile.mkdtemp(dir=".")
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            with os.fdopen(reading) as pipe:
                text = pipe.read()
            assert os.waitpid(child, 0)[1] == 0, text
            return json.loads(text)
        dsfix.process._engine.cache.__init__()  # which has been read at the import of dsfix
        try:
            os.write(writing, json.dumps(work()).encode())
            os._exit(0)
        except BaseException as error:
            import traceback
            os.write(writing, traceback.format_exc().encode())
            os._exit(1)

    def use():
        import deepspeed.m, deepspeed.n

    def steps(lines):
        seen = {}
        sys.settrace(tracer(lambda step: seen.setdefault(step, None), lines))
        use()
        sys.settrace(None)
        return list(seen)

    def fail_at(step, error, lines=()):
        def act(current):
            if current == step:
                raise error
        sys.settrace(tracer(act, lines))
        try:
            use()
        finally:
            sys.settrace(None)

    def state():
        values = [module.values() for module in keep.modules]
        for module in keep.modules:
            sys.modules.setdefault(module.__name__, module)
        return [values, {e.id: [e.outcome.value, e.reason] for e in dsfix.report()}]
"""


@LEARNED
def test_a_failure_at_any_step_leaves_all_or_nothing_and_one_warning(both, known):
    world = both("*changes('deepspeed.n')")
    result = world.run(
        f"    KNOWN = {known}\n"
        + FAULTS
        + """
    def broken(step):
        fail_at(step, RuntimeError("broken step"))
        return [step, *state(), said.count("WARNING")]

    in_a_child(use)
    tell([in_a_child(lambda: broken(tuple(step))) for step in in_a_child(lambda: steps(()))])
    """,
        DSFIX_REPORT="reports",
    )
    assert len(result.value) > (40 if known else 60)
    wrong = []
    for step, values, outcomes, warnings in result.value:
        outcome, reason = outcomes["cure"]
        whole = outcome == "applied" and values == [PATCHED] * 2
        nothing = outcome == "failed" and values == [ORIGINAL] * 2 and "broken step" in reason
        if not ((whole and warnings <= 1) or (nothing and warnings == 1)):
            wrong.append((step, values, outcome, reason, warnings))
    assert wrong == []


@LEARNED
def test_an_interrupt_at_any_step_propagates_and_leaves_the_module_whole(both, known):
    world = both("*changes('deepspeed.n')")
    result = world.run(
        f"    KNOWN = {known}\n"
        + FAULTS
        + """
    FILES = ("rewrite.py", "attributes.py", "cache.py")

    def interrupted(step):
        try:
            fail_at(step, KeyboardInterrupt(), FILES)
            passed = False
        except KeyboardInterrupt:
            passed = True
        first = [module.values() for module in keep.modules]
        use()
        again = [sys.modules[name].values() for name in ("deepspeed.m", "deepspeed.n")]
        outcome = dsfix.report()[0].outcome.value
        dsfix.revert("cure")
        return [step, passed, first, again, outcome, [module.values() for module in keep.modules]]

    in_a_child(use)
    tell([in_a_child(lambda: interrupted(tuple(step))) for step in in_a_child(lambda: steps(FILES))])
    """
    )
    assert len(result.value) > 60
    wrong = []
    for step, passed, first, again, outcome, back in result.value:
        whole = all(values in (ORIGINAL, PATCHED) for values in first)
        reverted = all(values == ORIGINAL for values in back)
        if not (passed and whole and again == [PATCHED] * 2 and outcome == "applied" and reverted):
            wrong.append((step, passed, first, again, outcome, back))
    assert wrong == []
