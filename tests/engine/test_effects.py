"""The effects that patches report: in the log, in report() and in the report files."""

import json

import pytest

from dsfix.catalogue import registry
from tests.samples import assert_sample

DEEPSPEED = """
class Engine:
    global_steps = 2

def initialize(model=None):
    return Engine(), None, None, None

def f(x):
    return x + 1

def g(x):
    return x + 1

def h(x):
    return x + 1
"""
TELLING = r"""
from dsfix.process.effects import took_effect

PATCH = declare(
    Edit(
        "deepspeed:f",
        before="return x + 1",
        code=f"took_effect({__name__!r}, 'twice %s', x)\nx *= 2",
        uses=(took_effect,),
    )
)
"""
RUNNING = """
from dsfix.patch import RAN

PATCH = declare(Edit("deepspeed:g", before="return x + 1", code="x += 0", effect=RAN))
"""
DECLARING = """
PATCH = declare(Edit("deepspeed:h", replace="x + 1", code="x + 2", effect="two were added", when="x > 3"))
"""


@pytest.fixture
def telling(world):
    world.package(init=DEEPSPEED)
    world.patch("tells", TELLING)
    world.patch("runs", RUNNING)
    world.patch("declares", DECLARING)
    world.patch("silent", 'PATCH = declare(Edit("deepspeed:g", before="return x + 1", code="x += 0"))')
    world.patch("provides", 'PATCH = declare(Provide("deepspeed", "k", lambda module: 1))')
    return world


def test_three_states(telling):
    result = telling.run(
        """
        import dsfix, deepspeed
        def reached(): return [(each.id, each.reached, each.effect and str(each.effect)) for each in dsfix.report()]
        before = reached()
        values = [deepspeed.f(3), deepspeed.f(4), deepspeed.g(1), deepspeed.h(3)]
        between = reached()
        deepspeed.h(4)
        tell([before, values, between, reached()])
        """
    )
    before, values, between, after = result.value
    constant = [["provides", "ran", None], ["silent", "", None]]
    telling = {id: [state, what] for id, state, what in after if [id, state, what] not in constant}
    assert telling == {
        "declares": ["took effect", "two were added"],
        "runs": ["ran", None],
        "tells": ["took effect", "twice 3"],
    }
    assert [each for each in before if each not in constant] == [[id, "not reached", None] for id in sorted(telling)]
    assert [each for each in between if each not in after] == [["declares", "not reached", None]]
    assert values == [7, 9, 2, 5]


def test_a_condition_is_evaluated_until_the_effect_is_reported(world):
    world.package(init="looked = []\n\ndef h(x):\n    return x + 1\n")
    world.patch("declares", DECLARING.replace("x > 3", "looked.append(x) or x > 3"))
    result = world.run("import dsfix, deepspeed; tell([[deepspeed.h(x) for x in (3, 4, 5)], deepspeed.looked])")
    assert result.value == [[5, 6, 7], [3, 4]]


def test_line_and_file(telling):
    result = telling.run(
        """
        import dsfix, deepspeed, os
        engine = deepspeed.initialize()[0]
        deepspeed.f(3), deepspeed.f(4)
        [file] = os.listdir("reports")
        tell(open(f"reports/{file}").read())
        """,
        DSFIX_REPORT="reports",
    )
    assert [line for line in result.log if "took effect" in line] == [
        "[dsfix] INFO: tells took effect, step 3: twice 3"
    ]
    assert {each["id"]: each["effect"] for each in json.loads(result.value)["patches"]}["tells"] == {
        "step": 3,
        "what": "twice 3",
    }


def test_the_sample_in_the_docs(world):
    flagship = "zero3_offload_clip_device"
    effect = next(each.effect for each in registry.catalogue()[flagship].patch.changes if each.effect)
    world.package(init=DEEPSPEED.replace("= 2", "= 16"))
    world.patch(flagship, DECLARING.replace("two were added", effect))
    log = world.run("import dsfix, deepspeed; engine = deepspeed.initialize()[0]; deepspeed.h(4)").log
    assert_sample("outcomes.md", next(line for line in log if "took effect" in line))


def test_other_ranks_are_silent(telling):
    result = telling.run("import dsfix, deepspeed; tell(deepspeed.f(3))", RANK="1")
    assert not any("took effect" in line for line in result.log)


def test_a_step_survives_a_handler_that_raises(telling):
    result = telling.run(
        """
        import dsfix, deepspeed, logging
        class Handler(logging.Handler):
            def emit(self, record):
                raise ValueError
        logging.getLogger("dsfix").addHandler(Handler())
        tell([deepspeed.f(3), [str(each.effect) for each in dsfix.report() if each.effect]])
        """,
        DSFIX_LOG_LEVEL="INFO",
    )
    assert result.value == [7, ["twice 3"]]


def test_ten_lines_and_a_count(world):
    names = [f"f{number}" for number in range(12)]
    world.package(init="".join(f"def {name}(x):\n    return x + 1\n" for name in names))
    for name in names:
        world.patch(name, TELLING.replace("deepspeed:f", f"deepspeed:{name}"))
    result = world.run(
        f"""
        import dsfix, deepspeed, os, sys
        tell([getattr(deepspeed, name)(1) for name in {names} for _ in 'ab'])
        sys.stdout.flush()
        if os.fork():
            os.wait()  # the child ends as a program does, and has no patch to count
        """
    )
    lines = [line for line in result.log if "took effect" in line]
    assert len(lines) == 11
    assert lines[-1] == "[dsfix] INFO: 12 patches took effect; 2 of them are not listed above"


def test_a_fork_starts_over(telling):
    result = telling.run(
        """
        import dsfix, deepspeed, os
        deepspeed.f(3)
        child = os.fork()
        if not child:
            reached = {each.id: each.reached for each in dsfix.report()}["tells"]
            deepspeed.f(4)
            os._exit(0 if reached == "not reached" else 1)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert result.value == 0
