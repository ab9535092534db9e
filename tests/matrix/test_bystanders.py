"""The space of jobs, the verdict on two runs, the marks in patches, the records and the page; nothing is trained."""

import ast
import dataclasses
import importlib
import itertools
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import matrix
from dsfix.catalogue.registry import catalogue
from dsfix.cli.exits import CommandError
from matrix import edges, table
from matrix.bystanders import comparison, docs, explanations, fingerprint, hits, records, running, scenario, space
from matrix.bystanders.comparison import State, Verdict
from matrix.bystanders.explanations import Explanation
from matrix.bystanders.records import Record, Run
from matrix.bystanders.scenario import Scenario
from matrix.bystanders.space import Job
from matrix.bystanders.trials import ALL, NONE, PLAIN, JobResult
from matrix.pages.text import story

RIGHT = np.array([1.0, -2.0])
SAME = Verdict(State.SAME)
CALL = ("all_reduce", (0, 1), 8, "float32")


def rank(*notes, ended="", collectives=(), syncs=0, peak=0, run=None, statements=None, patches=None, effects=()):
    return {
        "notes": list(notes),
        "ended": ended,
        "collectives": list(collectives),
        "syncs": syncs,
        "peak": peak,
        "run": run or {},
        "statements": statements or {},
        "patches": patches or {},
        "effects": effects,
        "versions": {"deepspeed": "1.0"},
    }


def seen(*ranks, late=False):
    return JobResult(ranks, late)


def moved(value, **more):
    return seen(rank(("movement", np.asarray(value)), **more))


def judged(before, after, plain=None, precision="fp32"):
    return comparison.judge(precision, before, after, moved(RIGHT) if plain is None else plain)


class TestSpace:
    def test_each_scenario_is_run_with_every_stage_that_it_allows(self):
        for name, jobs in itertools.groupby(space.jobs(), lambda job: job.scenario.name):
            only = scenario.load()[name].only
            wanted = {
                stage
                for stage, precision in itertools.product(
                    only.get("stage", space.FACTORS["stage"]), only.get("precision", space.FACTORS["precision"])
                )
                if space.possible({**space.plain(), "stage": stage, "precision": precision})
            }
            assert wanted <= {job.setting["stage"] for job in jobs}, name

    def test_every_compatible_pair_of_levels_occurs_in_a_job(self):
        settings = [job.setting for job in space.jobs()]
        for one, other in itertools.combinations(space.FACTORS, 2):
            met = {(each[one], each[other]) for each in settings}
            for levels in itertools.product(space.FACTORS[one], space.FACTORS[other]):
                needs = {"stage": "3", "ranks": "2"} if "stage" not in (one, other) else {}
                setting = {**space.plain(), **needs, **dict(zip((one, other), levels))}
                assert levels in met or not space.possible(setting), (one, other, levels)

    def test_all_jobs_are_possible_and_have_unique_ids(self):
        jobs = space.jobs()
        assert all(space.possible(job.setting) for job in jobs)
        assert len({job.id for job in jobs}) == len(jobs)

    def test_other_releases_have_the_first_pinned_job_of_each_scenario_and_one_more(self):
        parts = [[job for job in space.jobs_of(each) if not space.bound(job.scenario)] for each in ("0.14.2", "0.19.8")]
        assert parts[0] != parts[1]
        for part in parts:
            names = [job.scenario.name for job in part]
            assert set(names) == {name for name, each in scenario.load().items() if not space.bound(each)}
            assert max(map(names.count, names)) == 2

    @pytest.mark.parametrize("release", sorted(space.PARTIAL_RECORDS))
    def test_a_release_of_few_scenarios_has_all_their_jobs(self, release):
        jobs = [job for job in space.jobs_of(release) if not space.bound(job.scenario)]
        assert jobs == [job for job in space.jobs() if job.scenario.name in space.PARTIAL_RECORDS[release]]

    def test_a_sample_has_every_family_and_all_of_known_harm(self):
        every = space.samples(space.jobs_of(space.FULL_RECORD))
        sparse = space.sparse(every, 6)
        assert {job.scenario.family for job in sparse} == {job.scenario.family for job in every}
        harmed = [job for job in every if job.scenario.family in space.FULL_RECORD_ONLY]
        assert [job for job in sparse if job.scenario.family in space.FULL_RECORD_ONLY] == harmed
        assert len(sparse) < len(harmed) + len(every) / 5
        assert space.sparse(every, 1) == every

    def test_a_script_that_works_around_a_bug_is_run_where_the_patch_applies(self):
        known = {record.release for record in records.load_all()}
        for name, each in scenario.load().items():
            run_on = {space.bound(each)} if space.bound(each) else known
            assert run_on <= known, name
            for patch_id in each.works_around:
                assert any(map(catalogue()[patch_id].patch.claims, run_on)), name

    @pytest.mark.parametrize("patch_id", catalogue())
    def test_every_documented_workaround_has_a_script(self, patch_id):
        none = story(catalogue()[patch_id])["Workaround"].startswith("None")
        assert none is not bool(docs.worked_around(patch_id))

    def test_scenarios_restrict_known_factors_and_levels(self):
        for each in scenario.load().values():
            for factor, levels in each.only.items():
                assert set(levels) <= set(space.FACTORS[factor]), each.name


SCRIPT = """
from matrix.bystanders.scenarios import other
from matrix.bystanders.scenarios.other import LIMIT

WIDTH: int = 16

def helper(width):
    return width if width < LIMIT else helper(width - 1)

def neighbour(job):
    return WIDTH

@scenario("title", stage="1")
def script(job):
    other.train(job, helper(WIDTH))
"""
OTHER = """
LIMIT, STEPS = 8, 3

def train(job, width):
    import torch
    for step in range(STEPS):
        job.train(width)
"""


class TestFingerprint:
    @pytest.fixture
    def of(self, tmp_path, monkeypatch):
        """The fingerprint of a function of scenarios/, which has the given files."""
        package = importlib.import_module("matrix.bystanders.scenarios")

        def of(module, name, reference=True, **files):
            directory = tmp_path / str(len(list(tmp_path.iterdir())))
            directory.mkdir()
            for each, text in files.items():
                (directory / f"{each}.py").write_text(text)
            monkeypatch.setattr(package, "__path__", [str(directory)])
            for cached in (fingerprint.of, fingerprint._resolved, fingerprint._defined, fingerprint._imported):
                cached.cache_clear()
            return fingerprint.of(f"{package.__name__}.{module}", name, reference)

        yield of
        for cached in (fingerprint.of, fingerprint._resolved, fingerprint._defined, fingerprint._imported):
            cached.cache_clear()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("range(STEPS)", "range(STEPS, 4)"),
            ("LIMIT, STEPS = 8, 3", "LIMIT, STEPS = 9, 3"),
            ("width - 1)", "width - 2)"),
            ("WIDTH: int = 16", "WIDTH: int = 17"),
        ],
    )
    def test_a_change_of_what_it_uses_changes_it(self, of, old, new):
        before = of("scripts", "script", scripts=SCRIPT, other=OTHER)
        assert of("scripts", "script", scripts=SCRIPT.replace(old, new), other=OTHER.replace(old, new)) != before

    @pytest.mark.parametrize(
        ("old", "new"), [("return WIDTH", "return 2"), ('"title"', '"other"'), ("import torch", "import numpy, torch")]
    )
    def test_a_change_of_a_neighbour_or_of_text_changes_nothing(self, of, old, new):
        before = of("scripts", "script", scripts=SCRIPT, other=OTHER)
        assert of("scripts", "script", scripts=SCRIPT.replace(old, new), other=OTHER.replace(old, new)) == before

    @pytest.mark.parametrize("path", sorted(Path(scenario.__file__).with_name("scenarios").glob("*.py")))
    def test_files_of_scripts_only_define(self, path):
        kinds = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)
        for each in ast.parse(path.read_bytes()).body[1:]:
            assert isinstance(each, kinds) or "TYPE_CHECKING" in ast.unparse(each), ast.unparse(each)


NO = {"ended": "ValueError: no"}
REDUCES = {"collectives": [("all_reduce", (0,), 8, "float32")]}
VERDICTS = {  # before, after, verdict, a part of its reason
    "the same bits": (moved(RIGHT), moved(RIGHT), State.SAME, ""),
    "one bit less": (moved(RIGHT), moved(np.nextafter(RIGHT, 9)), State.RIGHT, ""),
    "wrong before": (moved(2 * RIGHT), moved(RIGHT), State.RIGHT, ""),
    "wrong after": (moved(RIGHT), moved(2 * RIGHT), State.WORSE, "movement"),
    "wrong in the same way: another bug": (moved(2 * RIGHT), moved(2 * RIGHT), State.OTHER, "movement"),
    "not finite where PyTorch is": (moved(RIGHT), moved([1.0, float("nan")]), State.WORSE, "movement"),
    "an exception where there was none": (moved(RIGHT), moved(RIGHT, **NO), State.WORSE, "ValueError: no"),
    "none where there was an exception": (moved(RIGHT, **NO), moved(RIGHT), State.RIGHT, ""),
    "the same exception": (moved(RIGHT, **NO), moved(RIGHT, **NO), State.ENDED, "ValueError: no"),
    "after wrong numbers": (moved(2 * RIGHT, **NO), moved(RIGHT, **NO), State.ENDED, "ValueError: no"),
    "after right numbers": (moved(RIGHT, **NO), moved(2 * RIGHT, **NO), State.WORSE, "movement"),
    "a hang": (moved(RIGHT, ended="AssertionError: "), seen(None, late=True), State.WORSE, "hangs"),
    "another collective": (moved(RIGHT), moved(RIGHT, **REDUCES), State.WORSE, ""),
    "one less": (moved(RIGHT, **REDUCES), moved(RIGHT), State.RIGHT, "the same numbers with -1 collectives"),
}


class TestVerdict:
    @pytest.mark.parametrize("case", VERDICTS)
    def test_two_runs(self, case):
        before, after, state, why = VERDICTS[case]
        found = judged(before, after)
        assert found.state is state
        assert why in found.why

    def test_less_accurate_is_worse_above_the_noise(self):
        assert judged(moved(RIGHT * 1.06), moved(RIGHT * 1.09), precision="bf16").state is State.WORSE
        assert judged(moved(RIGHT * 1.003), moved(RIGHT * 1.006), precision="bf16").state is State.RIGHT

    def test_a_different_exception_is_worse_without_a_reference(self):
        one, other = (seen(rank(ended=f"ValueError: {n}")) for n in range(2))
        assert comparison.judge("fp32", one, other, None).state is State.WORSE

    @pytest.mark.parametrize("label", ["movement", "[bits] movement"])
    def test_without_a_reference_only_rounding_may_differ(self, label):
        def found(value):
            return seen(rank((label, np.asarray(value))))

        assert comparison.judge("fp32", found(RIGHT), found(RIGHT * (1 + 1e-6)), None).state is State.RIGHT
        assert comparison.judge("fp32", found(RIGHT), found(RIGHT * (1 + 1e-4)), None).state is State.WORSE
        assert comparison.judge("fp32", found(RIGHT), seen(rank()), None).state is State.WORSE

    def test_a_reference_that_ended_early_is_not_used(self):
        found = judged(moved(RIGHT), moved(RIGHT), moved(RIGHT, ended="ValueError: no"))
        assert (found.state, found.why) == (State.OTHER, "plain PyTorch did not get to the end: ValueError: no")

    @pytest.mark.parametrize(
        "other", [[], [("all_gather", *CALL[1:])], [(*CALL[:2], 9, "float32")], [CALL, CALL]], ids=range(4)
    )
    def test_ranks_that_disagree_only_afterwards_are_worse(self, other):
        one = moved(RIGHT).ranks[0]
        before = seen(dict(one, collectives=[CALL]), dict(one, collectives=[CALL]))
        after = seen(dict(one, collectives=[CALL]), dict(one, collectives=other))
        assert judged(before, after).state is State.WORSE
        assert judged(after, after).state is not State.WORSE

    def test_separate_groups_need_not_agree(self):
        one = rank(collectives=[("all_reduce", (0,), 1, "float32")])
        assert comparison.disagreeing(seen(one, rank())) == ""

    def test_bits_are_not_compared_with_pytorch(self):
        note = ("[bits] gradient norm", 3.0)
        assert judged(seen(rank(note)), seen(rank(note)), seen(rank(("[bits] gradient norm", 1.0)))).state is State.SAME


PATCH = '''
from dsfix.patch import Edit, Patch, Severity
from dsfix.process.effects import ran, took_effect

from ._shared import last

def helper(x, meets=None):
    """What the edit calls, not unused here."""
    if differs(x):
        took_effect(__name__, "it did")
    else:
        ran(__name__)
    if x == 1:
        return 1
    return meets or last()

def differs(x):
    """What only decides whether to tell."""
    return False

def unused():
    return 3

def meets(job):
    return True

PATCH = Patch(
    title="t", severity=Severity.CRASH, affects={"deepspeed": ">=1"}, symptom="", upstream=(), fixed_in=None,
    config=meets,
    changes=(
        Edit("m:f", replace="a + b", code="a - b", effect="it was subtracted", when="unused()"),
        Edit("m:f", before="return c", code=f"if c:\\n    from {__name__} import helper\\n    c = helper(c)"),
    ),
)

def reproduce(lab):
    return unused()
'''


SHARED = """
from __future__ import annotations

def last():
    return 2

def unused():
    return 3
"""


@pytest.fixture
def marked(tmp_path, monkeypatch):
    """A patch `dsfix.patches.some`, loaded with marks."""
    import dsfix.patches

    (tmp_path / "some.py").write_text(PATCH)
    (tmp_path / "_shared.py").write_text(SHARED)
    monkeypatch.setattr(dsfix.patches, "__path__", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(hits, "run", {})
    monkeypatch.setattr(hits, "statements", {})
    hits.install()
    monkeypatch.delitem(sys.modules, "dsfix.patches.some", raising=False)
    yield importlib.import_module("dsfix.patches.some")
    sys.modules.pop("dsfix.patches.some", None)


class TestMarks:
    def test_code_that_the_changes_do_not_use_is_not_counted(self, marked):
        # an expression; an if, an import and a call; an if and two returns of the helper; a return of the shared code
        assert hits.statements == {"some": 1 + 3 + 3 + 1}

    @pytest.mark.parametrize(("value", "numbers"), [(0, 1), (1, 5), (2, 6)])
    def test_only_what_runs_is_marked(self, marked, value, numbers):
        code = "def f(c):\n" + textwrap.indent(marked.PATCH.changes[1].code, "    ") + "\n    return c"
        names = {}
        exec(code, names)
        assert names["f"](value) == value
        assert len(hits.run["some"]) == numbers

    def test_the_reproduction_marks_nothing(self, marked):
        assert marked.reproduce(None) == 3
        assert hits.run == {"some": set()}

    def test_a_warm_cache_hides_no_marks_and_gets_none(self, simple):
        imports = f"sys.path.append({str(Path(matrix.__file__).parents[1])!r}); from matrix.bystanders import hits"
        use = "import dsfix, deepspeed.m; tell([deepspeed.m.f(1), {id: list(run) for id, run in hits.run.items()}])"
        for marks, ran in (("", {}), ("hits.install()", {"cure": [0]}), ("", {})):
            assert simple.run("\n".join(("import sys", imports, marks, use))).value == [3, ran]


@pytest.fixture
def job(monkeypatch):
    """The only job of the space, without explanations."""
    monkeypatch.setattr(explanations, "EXPLANATIONS", ())
    only = Job(Scenario("a job", usual, pinned=[{}]), space.plain(), pinned=True)
    monkeypatch.setattr(space, "jobs", lambda: [only])
    monkeypatch.setattr(scenario, "load", lambda: {"usual": only.scenario})
    return only


def usual(job):
    """The script of the fixture `job`."""


class Trials:
    """Returns predefined results by variant."""

    def __init__(self, **by_variant):
        self.by_variant, self.asked = by_variant, []

    def run(self, job, variant):
        self.asked.append(variant)
        found = self.by_variant[variant.partition(" ")[0]]
        return found.pop(0) if isinstance(found, list) else found

    def starts(self, variant):
        return variant.partition(" ")[0] in self.by_variant


EMPTY = "zero12_empty_parameter"
APPLIES = {"run": {EMPTY: [0, 2]}, "statements": {EMPTY: 3}, "patches": {EMPTY: "applied"}}


def in_all(job, with_dsfix=None, before=None, **known):
    """The record after all patches were judged in a job. known: of the record before."""
    results = {NONE: before or moved(RIGHT), ALL: with_dsfix or moved(RIGHT, **APPLIES), PLAIN: moved(RIGHT)}
    record = Record("1.0", **known)
    running.jobs(record, Trials(**results), [job], 1, keep=False)
    return record


def alone(job, *others, ran=None, with_dsfix=None, before=None, **known):
    """The record after one patch was judged in a job; and whether it runs the patch's lines."""
    jobs = {each: Run("", SAME, dict(ran or {EMPTY: "1"})) for each in (job.id, *others)}
    record = Record("1.0", jobs=jobs, **known)
    results = {"without": before or moved(RIGHT), ALL: with_dsfix or moved(RIGHT, **APPLIES), PLAIN: moved(RIGHT)}
    return record, running.patch(record, Trials(**results), EMPTY, [job], 1)


class TestRunning:
    @pytest.fixture(autouse=True)
    def directory(self, tmp_path, records_in):
        records_in(records, tmp_path)

    def test_renumbered_statements_are_not_mixed_with_the_recorded_ones(self, job):
        other = Run("", SAME, {EMPTY: "40"})
        record = in_all(job, jobs={"other": other}, statements={EMPTY: 7})
        assert record.statements == {EMPTY: 3}
        assert {name: run.run for name, run in record.jobs.items()} == {job.id: {EMPTY: "5"}, "other": {}}

    def test_a_patch_whose_jobs_all_crash_is_not_proved(self, job):
        record, runs = alone(job, with_dsfix=seen(None), before=seen(None))
        assert not runs
        assert not record.is_proved(EMPTY)

    def test_a_changed_script_makes_its_jobs_stale(self, job, monkeypatch):
        record = Record("1.0", jobs={job.id: Run(job.scenario.fingerprint(), SAME)})
        assert record.current(job) is not None
        monkeypatch.setattr(Scenario, "fingerprint", lambda self: "another")
        assert record.current(job) is None

    @pytest.mark.parametrize(("said", "state"), [(EMPTY, "same"), ("moe_group_order", "other")])
    def test_a_wrong_result_that_was_changed_is_seen(self, job, said, state):
        """EMPTY is a crash, which need not show in the results."""
        found = in_all(job, moved(RIGHT, **APPLIES, effects=[said])).jobs[job.id].found
        assert (found.state, said in found.why) == (state, state == "other")

    def test_a_script_that_works_around_a_bug_undoes_what_the_patch_changed(self, job):
        around = dataclasses.replace(job.scenario, works_around=("moe_group_order",))
        result = moved(RIGHT, **APPLIES, effects=["moe_group_order"])
        assert in_all(dataclasses.replace(job, scenario=around), result).jobs[job.id].found.state == "same"

    def test_a_worse_verdict_is_repeated(self, job):
        assert in_all(job, [moved(2 * RIGHT, **APPLIES), moved(RIGHT)]).jobs[job.id].found.state == "same"

    def test_a_job_that_hangs_without_and_with_dsfix_is_recorded(self, job):
        hangs = seen(None, None, late=True)
        record = in_all(job, hangs, hangs, statements={EMPTY: 3})
        assert record.jobs[job.id].found.state in ("ended", "other")
        assert record.statements == {EMPTY: 3}

    def test_one_patch_is_disabled_where_its_lines_are_run(self, job):
        old = {EMPTY: "1", "zero12_full_bucket_dtype": "1"}
        record, _ = alone(job, ran=old, with_dsfix=moved(RIGHT, syncs=2, **APPLIES))
        assert record.jobs[job.id].one == {EMPTY: Verdict(State.SAME, syncs=2)}
        assert record.jobs[job.id].run == {**old, EMPTY: "5"}
        assert record.is_proved(EMPTY)

    def test_a_patch_without_which_deepspeed_cannot_be_imported(self, job, monkeypatch):
        monkeypatch.setattr(Trials, "starts", lambda self, variant: False)
        record, _ = alone(job)
        assert record.jobs[job.id].one[EMPTY] == Verdict(State.RIGHT, "DeepSpeed cannot be imported without it")

    @pytest.mark.parametrize(("proved", "left"), [({}, True), ({EMPTY: "another"}, False)])
    def test_recorded_lines_of_other_jobs_are_dropped_if_the_patch_has_changed(self, job, proved, left):
        record, _ = alone(job, "other", proved=proved)
        assert record.jobs["other"].run == ({EMPTY: "1"} if left else {})


def a_record(job, found, **run):
    record = Record("1.0", "2026-11-22", {}, {EMPTY: 3})
    record.jobs[job.id] = Run(job.scenario.fingerprint(), found, run)
    record.proved = {
        statement: records.fingerprints.of_changes(catalogue()[statement]) for statement in record.statements
    }
    return record


class TestPage:
    def test_a_job_that_was_not_run_is_named(self, job):
        [fault] = docs.faults([Record("1.0")])
        assert job.id in fault

    def test_a_patch_that_has_changed_since_is_named(self, job):
        record = a_record(job, SAME)
        record.proved = {EMPTY: "another"}
        [fault] = docs.faults([record])
        assert "zero12_empty_parameter has changed" in fault

    def test_only_worse_fails_a_run(self, job):
        assert docs.worse(a_record(job, Verdict(State.OTHER, "x"))) == []
        assert docs.worse(a_record(job, Verdict(State.WORSE, "x"))) == [f"1.0: {job.id}: x"]

    def test_a_patch_whose_verdicts_are_lost_is_named(self, job):
        ran = {EMPTY: "1"}
        record = a_record(job, SAME, **ran)
        [fault] = docs.faults([record])
        assert "zero12_empty_parameter has changed, or its verdicts are lost" in fault
        record.jobs[job.id].one = dict.fromkeys(ran, SAME)
        assert list(docs.faults([record])) == []

    @pytest.mark.parametrize("state", ["worse", "other"])
    def test_an_unexplained_job_is_named(self, job, state, monkeypatch):
        record = a_record(job, Verdict(state, "movement", 0.0, 1.0))
        assert list(docs.faults([record])) == [f"1.0: {job.id}: {state}: movement"]
        one = Explanation("why", "Because.", ["usual"], [state])
        monkeypatch.setattr(explanations, "EXPLANATIONS", (one,))
        assert list(docs.faults([record])) == []
        assert "Because." in docs.render([record])

    def test_an_unused_explanation_is_named(self, job, monkeypatch):
        one = Explanation("why", "Because.", ["usual"], levels={"stage": ["3"]})
        monkeypatch.setattr(explanations, "EXPLANATIONS", (one,))
        assert list(docs.faults([a_record(job, SAME)])) == ["explanation why explains nothing"]

    def test_a_patch_that_no_job_runs_is_a_gap(self, job):
        assert "Gaps: no job runs a line of zero12_empty_parameter." in docs.render([a_record(job, SAME)])
        ran = docs.render([a_record(job, SAME, **{EMPTY: "3"})])
        assert "Gaps" not in ran
        assert "| zero12_empty_parameter | 1.0 | 2 of 3 | 1 | - | - |" in ran

    def test_a_patch_that_no_job_can_run_is_named_with_the_reason(self, job):
        page = docs.render([a_record(job, SAME)])
        unjudged = page.partition("have not been judged alone yet: ")[2].partition(".\n")[0]
        known = table.load()
        for patch_id, why in docs.IMPOSSIBLE.items():
            assert f"{patch_id} ({why})" in page
            assert patch_id not in unjudged
            applying = [
                release.deepspeed
                for release in known.releases
                if edges.claimed(catalogue()[patch_id].patch, known.environments["torch-2.13.0"], release.deepspeed)
            ]
            assert not applying, patch_id

    def test_a_patch_is_judged_where_all_jobs_are_or_on_the_newest_release(self, job):
        old, whole, new = (Record(each, statements={EMPTY: 3}) for each in ("0.14.2", "0.18.9", "0.19.8"))
        assert records.judging_record(EMPTY, [new, whole, old]) is whole
        assert records.judging_record(EMPTY, [new, old]) is new
        assert records.judging_record("zero_step_at_initialization", [new, old]) is None
        faults = docs.faults([a_record(job, SAME), new])  # proved on 1.0, the newest
        assert not any("has changed" in fault for fault in faults)

    @pytest.mark.parametrize(
        "text", ["{", "1.0\t2026-11-22\n\n\n\nno tabs\n", "1.0\t2026-11-22\n\n\n\na-1\tf\tsame\tzz\n"]
    )
    def test_a_damaged_record_is_a_complaint(self, tmp_path, text):
        (tmp_path / "1.0.txt").write_text(text)
        with pytest.raises(CommandError, match=r"1\.0\.txt"):
            records.load("1.0", tmp_path)

    def test_a_record_is_read_as_it_was_written(self, job, tmp_path):
        record = a_record(job, Verdict(State.WORSE, "why", 0.1, float("inf"), 1, 2, 3), **{EMPTY: "3"})
        record.jobs[job.id].one[EMPTY] = Verdict(State.SAME, syncs=1)
        record.jobs["other-1"] = Run("f", Verdict(State.RIGHT, "= :c1 why", 0.0, 2e-7, -1, 0, -9), {}, {"lost": SAME})
        record.jobs["other-2"] = Run("f", Verdict(State.SAME, "why", 3e-8, 3e-8), {"p": "1f"}, {"p": SAME})
        record.jobs["other-2"].one["p"] = record.jobs["other-2"].found
        records.save(record, tmp_path)
        assert dataclasses.asdict(records.load("1.0", tmp_path)) == dataclasses.asdict(record)
