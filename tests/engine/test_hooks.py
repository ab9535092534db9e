"""When patches are applied: any order of imports, threads, reloads, other import hooks."""

import os
import sys
import zipfile

import pytest

from tests.stand_ins import FLAW


@pytest.mark.parametrize(
    "script",
    [
        "import dsfix, deepspeed.m; tell(deepspeed.m.f(1))",
        "import deepspeed, dsfix, deepspeed.m; tell(deepspeed.m.f(1))",
        "import deepspeed.m, dsfix; tell(deepspeed.m.f(1))",
        "from deepspeed.m import f; import dsfix; tell(f(1))",
        "import dsfix; from deepspeed.m import f; tell(f(1))",
        "import dsfix, importlib; tell(importlib.import_module('deepspeed.m').f(1))",
        "import dsfix, runpy; tell(runpy.run_module('deepspeed.script')['value'])",
        "import dsfix; from deepspeed import m; import importlib; importlib.reload(m); tell(m.f(1))",
        "import deepspeed.m, dsfix, importlib; tell(importlib.reload(deepspeed.m).f(1))",
        "import deepspeed.m, dsfix, sys; del sys.modules['deepspeed.m']\nimport deepspeed.m as m; tell(m.f(1))",
        "import dsfix, deepspeed.m, sys; old = deepspeed.m; del sys.modules['deepspeed.m']\n"
        "import deepspeed.m as m; assert m is not old; tell(m.f(1))",
        "import dsfix, deepspeed.m, sys\nfor name in ['deepspeed.m', 'deepspeed']: del sys.modules[name]\n"
        "import deepspeed.m; tell(deepspeed.m.f(1))",
        "import dsfix, importlib.util as u; s = u.find_spec('deepspeed.m'); m = u.module_from_spec(s)\n"
        "s.loader.exec_module(m); tell(m.f(1))",
    ],
)
def test_under_any_order_of_imports(simple, script):
    simple.module("deepspeed.script", "from deepspeed.m import f\nvalue = f(1)\n")
    result = simple.run(script + "\ntell(outcomes())")
    assert result.out.splitlines() == ["3", '{"cure": "applied"}']
    assert result.warnings == []


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("given", ["import dsfix, deepspeed.m", "import deepspeed.m, dsfix"])
def test_the_garbage_collector_stays_as_the_job_set_it(simple, given, collecting):
    before = "" if collecting else "gc.disable(); "
    result = simple.run(f"import gc; {before}{given}\ntell([gc.isenabled(), deepspeed.m.f(1)])")
    assert result.value == [collecting, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_forked_while_another_thread_imports_collects_garbage(simple):
    result = simple.run("""
        import dsfix, gc, os, threading
        from dsfix.engine.garbage import gc_paused
        paused, forked = threading.Event(), threading.Event()
        def importing():
            with gc_paused():
                paused.set()
                forked.wait()
        thread = threading.Thread(target=importing)
        thread.start()
        paused.wait()
        child = os.fork()
        if not child:
            os._exit(gc.isenabled())
        collects = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        forked.set()
        thread.join()
        tell([collects, gc.isenabled()])
    """)
    assert result.value == [1, True]


@pytest.mark.parametrize(
    "patch",
    [
        'Edit("deepspeed.m:C.f", replace="x + 1", code="x + 2")',
        'Wrap("deepspeed.m:C.f", lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs) + 1)',
        'Replace("deepspeed.m:C.f", lambda original: lambda self, x: original(self, x) + 1)',
    ],
)
def test_a_class_recreated_by_a_reload_is_patched_again_and_reverted(world, patch):
    world.package(m="class C:\n    def f(self, x):\n        return x + 1\n")
    world.patch("cure", f"PATCH = declare({patch})")
    result = world.run("""
        import dsfix, importlib, deepspeed.m as m
        old = m.C()
        importlib.reload(m)
        before = [old.f(1), m.C().f(1), outcomes()]
        dsfix.revert("cure")
        tell([before, old.f(1), m.C().f(1), outcomes()])
    """)
    assert result.value == [[3, 3, {"cure": "applied"}], 2, 2, {"cure": "disabled"}]


def test_a_file_that_has_changed_before_a_reload(simple):
    result = simple.run("""
        import dsfix, importlib, deepspeed.m as m
        text = open(m.__file__).read()
        open(m.__file__, "w").write("# one more line\\n\\n" + text)
        importlib.reload(m)
        first = m.f(1), outcomes()
        open(m.__file__, "w").write(text.replace("x + 1", "x + 5"))
        importlib.reload(m)
        tell([first, m.f(1), outcomes()])
    """)
    assert result.value == [[3, {"cure": "applied"}], 6, {"cure": "drifted"}]
    assert len(result.warnings) == 1


def test_imported_again_while_reports_are_written(world):
    world.package(m="import deepspeed.other\n" + FLAW, other=FLAW)
    world.patch("cure", 'PATCH = declare(Edit("deepspeed.m:f", replace="x + 1", code="x + 2"))')
    world.patch("other", 'PATCH = declare(Edit("deepspeed.other:f", replace="x + 1", code="x + 2"))')
    result = world.run(
        """
        import dsfix, sys, deepspeed.m
        for name in ("deepspeed.m", "deepspeed.other"):
            del sys.modules[name]
        import deepspeed.m  # whose import of the other writes a report, with this one half executed
        tell([sys.modules["deepspeed.m"].f(1), outcomes()])
        """,
        DSFIX_REPORT="reports",
    )
    assert result.value == [3, {"cure": "applied", "other": "applied"}]


def test_reloaded_after_a_report_of_a_replacement(simple):
    result = simple.run("""
        import dsfix, importlib, deepspeed.m as m
        ours, m.f = m.f, lambda x: x
        first = outcomes()
        m.f = ours
        second = outcomes()
        m.f = lambda x: x
        third = outcomes()
        importlib.reload(m)
        tell([first, second, third, m.f(1), outcomes()])
    """)
    conflict, applied = {"cure": "conflict"}, {"cure": "applied"}
    assert result.value == [conflict, applied, conflict, 3, applied]


def test_dynamic_attributes_of_decorators_are_not_evaluated(world):
    world.module(
        "lazy",
        """
        class Lazy:
            def __init__(self, function):
                self.function = function
            def __call__(self, *arguments):
                return self.function(*arguments)
            def __getattr__(self, name):
                import deepspeed.other
                raise AttributeError(name)
        """,
    )
    world.package(m="import lazy\n@lazy.Lazy\n" + FLAW, other=FLAW)
    world.patch("cure", 'PATCH = declare(Edit("deepspeed.m:f", replace="x + 1", code="x + 2"))')
    world.patch("other", 'PATCH = declare(Edit("deepspeed.other:f", replace="x + 1", code="x + 2"))')
    result = world.run("import dsfix, deepspeed.m as m; tell([m.f(1), outcomes()])")
    assert result.value == [3, {"cure": "applied", "other": "pending"}]


def test_a_failed_import_in_another_thread_is_not_retried(world):
    world.module("meeting", "import threading\nbegun, go_on, runs = threading.Event(), threading.Event(), []\n")
    world.package(init="import meeting\nmeeting.runs.append(1)\nmeeting.begun.set()\nmeeting.go_on.wait(30)\n1 / 0\n")
    result = world.run("""
        import meeting, sys, threading
        def other():
            try:
                import deepspeed
            except ZeroDivisionError:
                pass
        thread = threading.Thread(target=other)
        thread.start()
        meeting.begun.wait(30)
        class Path(list):
            def insert(self, at, finder):
                super().insert(at, finder)
                meeting.go_on.set()
        sys.meta_path = Path(sys.meta_path)
        import dsfix
        thread.join(30)
        tell(meeting.runs)
    """)
    assert result.value == [1]


def test_a_module_whose_first_import_fails(world):
    world.package(m=FLAW + "import os\nif os.environ.pop('FAIL', None): raise OSError('not yet')\n")
    world.patch("cure", 'PATCH = declare(Edit("deepspeed.m:f", replace="x + 1", code="x + 2"))')
    result = world.run(
        """
        import dsfix
        try:
            import deepspeed.m
        except OSError:
            first = outcomes()
        import deepspeed.m
        tell([first, outcomes(), deepspeed.m.f(1)])
        """,
        FAIL="1",
    )
    assert result.value == [{"cure": "pending"}, {"cure": "applied"}, 3]
    assert result.warnings == []


def test_a_package_whose_import_fails_after_its_sub_module(world):
    world.package(
        init="import os\nfrom . import m\nif os.environ.pop('FAIL', None): raise OSError('not yet')\n", m=FLAW
    )
    world.patch("cure", 'PATCH = declare(Edit("deepspeed.m:f", replace="x + 1", code="x + 2"))')
    result = world.run(
        """
        import dsfix
        try:
            import deepspeed
        except OSError:
            first = outcomes()
        import deepspeed
        tell([first, outcomes(), deepspeed.m.f(1)])
        """,
        FAIL="1",
    )
    assert result.value == [{"cure": "applied"}, {"cure": "applied"}, 3]


@pytest.mark.parametrize("place", ["before", "between", "after"])
def test_dsfix_imported_by_the_package_itself(world, place):
    lines = ["from . import a", "from . import m"]
    lines.insert(["before", "between", "after"].index(place), "import dsfix")
    world.package(init="\n".join([*lines, FLAW]), a=FLAW, m=FLAW)
    for name in ("a", "m"):
        world.patch(name, f'PATCH = declare(Edit("deepspeed.{name}:f", replace="x + 1", code="x + 2"))')
    world.patch("top", 'PATCH = declare(Edit("deepspeed:f", replace="x + 1", code="x + 2"))')
    result = world.run("import deepspeed as d; o = outcomes(); tell([d.a.f(1), d.m.f(1), d.f(1), o])")
    assert result.value == [3, 3, 3, {"a": "applied", "m": "applied", "top": "applied"}]
    assert result.warnings == []


@pytest.mark.parametrize("option", ["-O", "-OO", "-Werror", "-Xdev"])
def test_under_options_of_python(simple, option):
    simple.module("deepspeed.m", 'def f(x):\n    "doc"\n    assert x\n    y = x + 1\n    return y\n')
    result = simple.run("import dsfix, deepspeed.m; tell([deepspeed.m.f(1), outcomes()])", python=(option,))
    assert result.value == [3, {"cure": "applied"}]


@pytest.mark.parametrize("tool", ["settrace", "setprofile"])
@pytest.mark.parametrize("order", ["dsfix, deepspeed.m", "deepspeed.m, dsfix"])
def test_under_a_debugger_or_a_profiler(simple, tool, order):
    result = simple.run(f"""
        import sys
        def look(*arguments):
            return look
        sys.{tool}(look)
        import {order}
        first = deepspeed.m.f(1)
        dsfix.revert("cure")
        tell([first, deepspeed.m.f(1)])
    """)
    assert result.value == [3, 2]


def test_modules_see_their_own_loader(simple):
    text = FLAW + "seen = [type(__loader__).__name__, type(__spec__.loader).__name__]\n"
    simple.module("deepspeed.m", text)
    result = simple.run("""
        import dsfix, importlib, inspect, importlib.resources, importlib.util, pkgutil, deepspeed.m as m
        first = m.seen
        importlib.reload(m)
        spec = importlib.util.find_spec("deepspeed.m")
        tell([first, m.seen, type(m.__loader__).__name__, type(m.__spec__.loader).__name__, spec is m.__spec__,
              inspect.getsource(m.f), m.__spec__.loader.get_filename() == m.__file__,
              pkgutil.get_data("deepspeed", "m.py").decode() == inspect.getsource(m)])
    """)
    loader = ["SourceFileLoader"] * 2
    assert result.value == [loader, loader, *loader, True, FLAW, True, True]


def test_a_package_in_a_zip_file(simple):
    def packed_and_run():
        with zipfile.ZipFile(simple.path / "packed.zip", "w") as packed:
            for file in simple.site.rglob("*"):
                packed.write(file, file.relative_to(simple.site))
        script = "import dsfix, deepspeed.m as m; tell([m.f(1), m.__loader__.__class__.__name__, outcomes()['cure']])"
        return simple.run(script, PYTHONPATH=f"{simple.path / 'packed.zip'}:{simple.runtime}").value

    assert packed_and_run() == [3, "zipimporter", "applied"]
    simple.module("deepspeed.m", "def f(x):\n    return x + 40\n")
    assert packed_and_run() == [41, "zipimporter", "drifted"]


@pytest.mark.parametrize("order", ["dsfix, hook", "hook, dsfix"])
def test_coexists_with_wrapt_hooks(simple, order):
    simple.module(
        "hook",
        "import wrapt\nseen = []\nfor name in ('deepspeed', 'deepspeed.m'):\n"
        "    wrapt.register_post_import_hook(lambda module: seen.append(module.__name__), name)\n",
    )
    result = simple.run(f"""
        import {order}
        import deepspeed.m as m
        import importlib
        first = m.f(1)
        importlib.reload(m)
        tell([hook.seen, first, m.f(1), type(m.__loader__).__name__, type(m.__spec__.loader).__name__])
    """)
    assert result.value[0][:2] == ["deepspeed", "deepspeed.m"]
    assert result.value[1:] == [3, 3, "SourceFileLoader", "SourceFileLoader"]


def test_other_finders_before_and_after_it_are_called(simple):
    result = simple.run("""
        import sys
        class Asked:
            def __init__(self):
                self.names = []
            def find_spec(self, name, path=None, target=None):
                self.names.append(name)
        first, last = Asked(), Asked()
        sys.meta_path.insert(0, last)
        import dsfix
        sys.meta_path.insert(0, first)
        import deepspeed.m
        tell([deepspeed.m.f(1), "deepspeed.m" in first.names, "deepspeed.m" in last.names])
    """)
    assert result.value == [3, True, True]


def test_a_simultaneous_import_in_several_threads(world):
    names = [f"m{number}" for number in range(16)]
    world.package(**{name: (f"import deepspeed.m{n // 2}\n" if n else "") + FLAW for n, name in enumerate(names)})
    for name in names:
        world.patch(name, f'PATCH = declare(Edit("deepspeed.{name}:f", replace="x + 1", code="x + 2"))')
    both = ", ".join(f'Edit("deepspeed.{name}:f", after="y = x + 1", code="y += 0")' for name in names)
    world.patch("z_all", f"PATCH = declare({both})")
    result = world.run(
        """
        import dsfix, importlib, os, sys, threading
        sys.setswitchinterval(1e-5)
        barrier = threading.Barrier(16)
        def work(number):
            barrier.wait()
            importlib.import_module(f"deepspeed.m{number}")
        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        values = {sys.modules[f"deepspeed.m{n}"].f(1) for n in range(16)}
        tell([sorted(set(outcomes().values())), sorted(values), os.listdir("reports")])
        """,
        DSFIX_REPORT="reports",
    )
    assert result.value[:2] == [["applied"], [3]]
    assert len(result.value[2]) == 1
    assert result.warnings == []


def test_a_thread_imports_the_package_while_another_imports_dsfix(world):
    world.module("meeting", "import threading\nbegun, go_on = threading.Event(), threading.Event()\n")
    world.package(init="from . import m\n", m="import meeting\nmeeting.begun.set()\nmeeting.go_on.wait(30)\n" + FLAW)
    world.patch("cure", 'PATCH = declare(Edit("deepspeed.m:f", replace="x + 1", code="x + 2"))')
    result = world.run("""
        import meeting, sys, threading
        thread = threading.Thread(target=lambda: __import__("deepspeed"))
        thread.start()
        meeting.begun.wait(30)
        class Path(list):
            def insert(self, at, finder):  # dsfix begins to watch: from here on the other thread may go on
                super().insert(at, finder)
                meeting.go_on.set()
        sys.meta_path = Path(sys.meta_path)
        import dsfix
        thread.join(30)
        tell([sys.modules["deepspeed.m"].f(1), outcomes()])
    """)
    assert result.value == [3, {"cure": "applied"}]
    assert result.warnings == []


def test_two_threads_that_wait_for_each_other_do_not_deadlock(world):
    world.module("meeting", "import threading\nbegun, go_on = threading.Event(), threading.Event()\n")
    world.package(
        init="import meeting\nmeeting.begun.set()\nmeeting.go_on.wait(30)\nimport dsfix\nfrom . import m\n", m=FLAW
    )
    world.patch("cure", 'PATCH = declare(Edit("deepspeed.m:f", replace="x + 1", code="x + 2"))')
    world.patch(
        "zz_meets", "import meeting\nmeeting.go_on.set()\n" + 'PATCH = declare(Provide("deepspeed.m", "g", id))'
    )
    result = world.run("""
        import meeting, sys, threading
        thread = threading.Thread(target=lambda: __import__("deepspeed"))
        thread.start()
        meeting.begun.wait(30)
        import dsfix
        thread.join(30)
        import deepspeed.m
        tell([thread.is_alive(), deepspeed.m.f(1), outcomes()])
    """)
    assert result.value == [False, 3, {"cure": "applied", "zz_meets": "applied"}]


def test_nothing_is_imported_by_dsfix(simple):
    result = simple.run("""
        import sys
        import dsfix
        unwanted = {"deepspeed", "torch", "numpy", "wrapt"}
        tell(sorted(unwanted & {name.partition(".")[0] for name in sys.modules}))
    """)
    assert result.value == []


def test_nothing_is_watched_if_dsfix_is_disabled(simple):
    result = simple.run(
        "import sys; a = list(sys.meta_path); import dsfix; tell(a == sys.meta_path)", DSFIX_DISABLE="1"
    )
    assert result.value is True


def test_a_package_other_than_deepspeed_can_be_the_target(world):
    world.package(name="torch", version="2.3.0+cu121", m=FLAW)
    world.package()
    world.patch(
        "cure", 'PATCH = declare(Edit("torch.m:f", replace="x + 1", code="x + 2"), affects={"torch": "==2.3.0"})'
    )
    result = world.run("import dsfix, torch.m; tell([torch.m.f(1), outcomes()])")
    assert result.value == [3, {"cure": "applied"}]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="bytecode has no columns")
@pytest.mark.parametrize("options", [(("-X", "no_debug_ranges"), ()), ((), ("-X", "no_debug_ranges"))])
def test_bytecode_without_columns(simple, options):
    result = [
        simple.run(
            "import dsfix, deepspeed.m as m; tell([m.f(1), outcomes()])", python=option, PYTHONDONTWRITEBYTECODE=""
        )
        for option in options
    ]
    assert [each.value for each in result] == [[3, {"cure": "applied"}]] * 2


@pytest.mark.parametrize(
    "change",
    [
        'Edit("deepspeed.m:f", replace="y = x + 1", code="y = x + 1 + 1")',
        'Wrap("deepspeed.m:f", lambda wrapped, instance, args, kwargs: wrapped(*args) + 1)',
        'Replace("deepspeed.m:f", lambda old: lambda x: old(x) + 1)',
    ],
)
def test_dsfix_imported_again_makes_each_change_once(simple, change):
    simple.patch("cure", f"PATCH = declare({change})")
    result = simple.run("""
        import dsfix, deepspeed.m, sys
        finders = lambda: sum("dsfix" in type(each).__module__ for each in sys.meta_path)
        before = finders()
        for name in [name for name in sys.modules if name.partition(".")[0] == "dsfix"]:
            del sys.modules[name]
        found = [outcomes()["cure"], deepspeed.m.f(1)]
        dsfix = sys.modules["dsfix"]
        dsfix.revert("cure")
        tell([*found, deepspeed.m.f(1), finders() - before])
    """)
    assert result.value == ["applied", 3, 2, 0]
    assert result.warnings == []
