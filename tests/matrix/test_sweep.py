"""The space of configs, its covering array, the classes of disagreements, and the page; nothing is trained."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from dsfix.audit.agreement import AuditVerdict, Difference
from dsfix.cli.exits import Complaint
from matrix.sweep import classes, covering, docs, records, running, space
from matrix.sweep.explanations import Explanation, Kind
from matrix.sweep.records import Class, Found, Run

AGREES = Run(comparisons=10)
WRONG = Found("training", "gradients", 1, ("up.weight",), 1.0, 2.0, 0.5, 1e-6)


def disagreeing(found=WRONG):
    return Run(comparisons=10, differences=(found,))


@pytest.fixture
def three(monkeypatch):
    """Replaces the committed configs by the plain one and two others."""
    rows = [space.complete(levels) for levels in ({}, {"stage": "2"}, {"stage": "2", "accumulation": "4"})]
    monkeypatch.setattr(covering, "load", lambda: rows)
    return rows


def possible(part):
    return frozenset(part.items()) in covering.allowed(2, part)


class TestSpace:
    def test_every_allowed_combination_occurs(self):
        rows = covering.load()
        assert not [row for row in rows if list(space.broken(row))]
        for strength, factors in ((2, covering.WITHOUT), (3, covering.CORE)):
            met = set().union(*(covering.combinations(row, strength, factors) for row in rows))
            assert met == covering.allowed(strength, factors)

    def test_every_schedule_occurs_with_every_level_of_the_factors_that_concern_streams(self):
        rows = [row for row in covering.load() if row["schedule"] != "none"]
        for name in covering.STREAMS:
            met = {(row["schedule"], row[name]) for row in rows}
            wanted = {
                (schedule, level)
                for schedule in space.FACTORS["schedule"]
                for level in space.FACTORS[name]
                if schedule != "none" and possible({"schedule": schedule, name: level})
            }
            assert met == wanted, name

    def test_a_schedule_reaches_the_plan_and_is_looked_through_for_races(self):
        late = space.plan(space.complete({"stage": "2", "schedule": "late", "offload": "optimizer", "pinned": "yes"}))
        assert (late.schedule, late.races) == ("late", True)
        assert late.config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
        assert not space.plan(space.plain()).races

    def test_allowed_matches_a_search_over_all_rows(self, monkeypatch):
        """On a space small enough to enumerate."""
        names = ("stage", "offload", "partitioning", "ranks")
        monkeypatch.setattr(covering, "FACTORS", {name: space.FACTORS[name] for name in names})
        rows = [dict(zip(names, levels)) for levels in itertools.product(*(space.FACTORS[name] for name in names))]
        found = {pair for row in rows if not list(space.broken(row)) for pair in itertools.combinations(row.items(), 2)}
        assert covering.allowed(2, names) == {frozenset(pair) for pair in found}
        assert frozenset({("stage", "2"), ("offload", "optimizer, param")}) not in covering.allowed(2, names)

    @pytest.mark.parametrize("each", space.CONSTRAINTS, ids=lambda each: "-".join(each.factors))
    def test_a_constraint_forbids_something_and_not_the_plain_row(self, each):
        held = {each.holds(*levels) for levels in itertools.product(*(space.FACTORS[name] for name in each.factors))}
        assert held == {True, False}
        assert each not in space.broken(space.plain())

    def test_levels_reach_the_plan(self):
        plan = space.plan(space.complete({"stage": "3", "partitioning": "hpZ", "buckets": "small", "trained": "LoRA"}))
        zero = plan.config["zero_optimization"]
        assert (zero["stage"], zero["zero_hpz_partition_size"], zero["reduce_bucket_size"]) == (3, 2, 500)
        assert (plan.freeze, plan.lora) == ("base", True)
        assert "zero_optimization" not in space.plan(space.plain()).config
        row = space.complete({"stage": "2", "backwards": "tensor"})
        assert [space.plan(row, release).backwards for release in ("0.18.2", "0.18.3")] == ["loss", "tensor"]
        assert space.BASE["gradient_clipping"] == 0.0  # the plan is a copy

    def test_rows_of_different_plans_have_different_names(self):
        rows = covering.load()
        assert len({space.identify(row) for row in rows}) == len({space.plan(row).dump() for row in rows}) == len(rows)

    def test_an_unknown_level_is_one_sentence(self, tmp_path):
        path = tmp_path / "configs.json"
        path.write_text('[{"stage": "4"}]')
        with pytest.raises(Complaint, match="stage = 4 is not in the space of configs"):
            covering.load(path)


RACE = """race: write by aten::copy_(self: Float[4]) on the default stream, AccumulateGrad
      deepspeed/runtime/zero/stage3.py:12 in reduce
      deepspeed/runtime/engine.py:1 in backward
    and read by aten::add(self: Float[4]) on stream 3
      deepspeed/runtime/zero/stage3.py:34 in step
    Nothing makes the second wait for the first."""


class TestRaces:
    def test_the_races_of_a_run_are_one_finding(self):
        [found] = records.run_of(AuditVerdict(races=(RACE,))).differences
        assert (found.what, found.detail) == (
            "race",
            "write by aten::copy_(self: Float[4]) on the default stream, AccumulateGrad (stage3.py:12 in reduce); "
            "read by aten::add(self: Float[4]) on stream 3 (stage3.py:34 in step)",
        )
        [several] = records.run_of(AuditVerdict(races=(RACE, "race: other"))).differences
        assert several.detail.startswith("2 races, one of them: write by aten::copy_")
        assert classes.kind(found) == classes.kind(several)

    def test_a_race_in_a_training_with_wrong_numbers_is_their_cause(self):
        wrong = Difference(**{**vars(WRONG), "names": ()})
        for differences, shown in (((wrong,), "gradients"), ((), "race")):
            run = records.run_of(AuditVerdict(differences, races=(RACE,)))
            assert [each.what for each in classes.findings(run)] == [shown]

    def test_a_race_is_shown_on_the_page(self):
        [found] = records.run_of(AuditVerdict(races=(RACE,))).differences
        assert "race: write by aten::copy_" in docs._finding(found)


def attempts(wrong):
    """Stands in for trials, which disagree if `wrong(row, left_out)`; `tried` has the row and variant of each."""

    def attempt(row, variant, left_out):
        attempt.tried.append((row, variant))
        return disagreeing() if wrong(row, left_out) else AGREES

    attempt.tried = []
    return attempt


def dropped(row, left_out):
    return row["stage"] == "2" and row["accumulation"] == "4"


class TestClasses:
    def test_only_needed_levels_remain(self):
        """The bug needs ZeRO-2 and accumulation; the other levels are irrelevant."""
        needed = {"stage": "2", "accumulation": "4"}
        others = {"offload": "optimizer", "clipping": "on", "round_robin_gradients": "true"}
        attempt = attempts(dropped)
        found = classes.reduce(space.complete({**needed, **others}), "without", WRONG, attempt)
        assert found.minimal == needed
        assert not [row for row, _ in attempt.tried if list(space.broken(row))]

    @pytest.mark.parametrize("levels", [{"stage": "2", "accumulation": "4"}, {"stage": "2"}, {"stage": "3"}])
    def test_classes_of_another_release_are_tried_first_and_verified(self, levels):
        row = space.complete({"stage": "2", "accumulation": "4", "clipping": "on", "trained": "part"})
        known = [Class("without", {}, (dataclasses.replace(WRONG, what="loss"),)), Class("without", levels, (WRONG,))]
        attempt = attempts(dropped)
        found = classes.reduce(row, "without", WRONG, attempt, known)
        assert found.minimal == {"stage": "2", "accumulation": "4"}
        first, _ = attempt.tried[0]
        assert (space.differing(first) == levels) == (levels["stage"] == "2")  # the other does not match this row
        assert len(attempt.tried) == 4 or len(levels) == 1

    def test_a_different_disagreement_is_not_mistaken_for_it(self):
        row = space.complete({"stage": "2", "accumulation": "4"})
        other = dataclasses.replace(WRONG, what="loss")

        def attempt(row, variant, left_out):
            return disagreeing(WRONG if row["accumulation"] == "4" else other)

        assert classes.reduce(row, "with", WRONG, attempt).minimal == {"accumulation": "4"}

    def test_errors_that_differ_in_numbers_and_names_are_of_one_kind(self):
        error = Found("training", "error", 0, (), 0.0, 0.0, 0.0, 0.0, "KeyError: 'a' of 12")
        assert classes.kind(error) == classes.kind(dataclasses.replace(error, detail="KeyError: 'b' of 3"))
        assert classes.kind(error) != classes.kind(dataclasses.replace(error, detail="ValueError: 'a' of 12"))

    def test_a_wrong_training_hides_what_its_checkpoints_show(self):
        later = dataclasses.replace(WRONG, phase="resume")
        assert classes.findings(Run(1, (WRONG, later))) == (WRONG,)
        assert classes.findings(Run(1, (later,))) == (later,)
        assert [each.detail for each in classes.findings(Run(0, failed="no end after 120 s"))] == ["no end after 120 s"]

    @pytest.mark.parametrize("needed", [{"b"}, {"b", "e"}])
    def test_the_needed_patches_are_found(self, needed):
        attempt = attempts(lambda row, left_out: needed & {*left_out})
        found = classes.with_fixes(Class("without", {"stage": "2"}, (WRONG,)), [*"abcde"], attempt)
        assert set(found.patches) == needed
        assert {variant for _, variant in attempt.tried} == {"with"}

    def test_the_patches_of_another_release_are_tried_first(self):
        attempt = attempts(lambda row, left_out: "b" in left_out)
        applied = [chr(code) for code in range(ord("a"), ord("z"))]
        known = [Class("without", {"stage": "2", "groups": "several"}, (WRONG,), ("b", "z"))]
        assert classes.with_fixes(Class("without", {"stage": "2"}, (WRONG,)), applied, attempt, known).patches == ("b",)
        assert len(attempt.tried) <= 3

    def test_of_patches_that_each_suffice_one_is_named(self):
        attempt = attempts(lambda row, left_out: {"b", "e"} <= {*left_out})
        assert classes.with_fixes(Class("without", {}, (WRONG,)), [*"abcde"], attempt).patches in (("b",), ("e",))

    def test_a_disagreement_that_remains_with_dsfix_has_no_patches(self):
        found = classes.with_fixes(Class("without", {}, (WRONG,)), ["a"], lambda *_: disagreeing())
        assert found.patches == ()


class Engine:
    """Replaces the trials: ZeRO-2 with accumulation is wrong without dsfix and, if `faulty`, also with it."""

    def __init__(self):
        self.tried = []
        self.faulty = False

    def __call__(self, row, variant, left_out=()):
        self.tried.append((space.differing(row), variant, tuple(left_out)))
        patched = variant == "with" and "fixes" not in left_out
        wrong = row["stage"] == "2" and row["accumulation"] == "4" and (self.faulty or not patched)
        patches = ("fixes", "other") if variant == "with" else ()
        return AuditVerdict(
            differences=(Difference(**{**vars(WRONG), "names": ("up.weight",) * 5}),) if wrong else (),
            comparisons=10,
            patches=tuple(each for each in patches if each not in left_out),
            versions={"deepspeed": "0.17.6", "torch": "2.13.0"},
            device="emulated CUDA device",
        )


@pytest.fixture
def engine(three, tmp_path, records_in):
    records_in(records, tmp_path)
    return Engine()


def swept(engine, **options):
    record = running.release("0.17.6", engine, 1, **{"again": False, **options})
    running.classify(record, engine, 2)
    return record


class TestRun:
    def test_a_release_is_run_classified_and_recorded(self, engine):
        record = swept(engine)
        [found] = record.classes
        assert (found.variant, found.patches) == ("without", ("fixes",))
        assert found.minimal == {"stage": "2", "accumulation": "4"}
        assert len(found.shown[0].names) == 3
        assert records.load("0.17.6") == record

    def test_what_is_in_the_record_is_not_run_again(self, engine):
        swept(engine)
        engine.tried.clear()
        assert len(swept(engine).runs) == 3
        assert not engine.tried
        swept(engine, again=True)
        assert sum(not left_out for *_, left_out in engine.tried) >= 6

    def test_what_was_run_before_an_interruption_is_kept(self, engine, three):
        def interrupted(row, variant, left_out):
            if row == three[-1]:
                raise KeyboardInterrupt
            return engine(row, variant, left_out)

        with pytest.raises(KeyboardInterrupt):
            running.release("0.17.6", interrupted, 1, again=False)
        assert len(records.load("0.17.6").runs) == 2

    def test_a_class_is_dropped_with_its_disagreements(self, engine):
        engine.faulty = True
        assert [(each.variant, each.patches) for each in swept(engine).classes] == [("with", ())]
        engine.faulty = False
        assert [each.patches for each in swept(engine, again=True).classes] == [("fixes",)]

    def test_rerunning_one_config_keeps_the_classes_of_the_others(self, engine, three):
        [found] = swept(engine).classes
        engine.tried.clear()
        sound = next(row for row in three if not found.minimal.items() <= row.items())
        assert swept(engine, again=True, configs=[space.identify(sound)]).classes == [found]
        assert len(engine.tried) == 2

    def test_a_disagreement_that_is_gone_with_dsfix_is_classified_again_without_it(self, engine):
        engine.faulty = True
        record = swept(engine)
        engine.faulty = False
        for runs in record.runs.values():
            del runs["with"]
        records.save(record)
        assert [(each.variant, each.patches) for each in swept(engine).classes] == [("without", ("fixes",))]

    def test_a_damaged_record_is_one_sentence(self, engine, tmp_path):
        (tmp_path / "0.17.6.json").write_text('{"runs": 1}')
        with pytest.raises(Complaint, match="is not a valid sweep record"):
            records.load("0.17.6")


OPEN = Explanation("dropped", Kind.OPEN, "Micro-batches are lost.", levels={"stage": ("1", "2")}, what=("gradients",))


class TestPage:
    @pytest.fixture(autouse=True)
    def catalogue(self, monkeypatch):
        monkeypatch.setattr(docs, "registry", SimpleNamespace(catalogue=lambda: {"fixes": None}))

    def test_what_a_patch_fixes_needs_no_explanation(self, engine):
        swept(engine)
        assert list(docs.faults(records.load_all(), ())) == []
        page = docs.render(records.load_all(), ())
        row = "| stage 2, accumulation 4 | gradients of up.weight, step 1: 1 instead of 2 | 1 | fixed by [fixes]"
        assert row in page
        assert "| [0.17.6](#0176) | 3 | 0 | 60 | 1 | 0 |" in page

    def test_an_unexplained_disagreement_is_reported(self, engine):
        engine.faulty = True
        swept(engine)
        found = records.load_all()
        assert [each for each in docs.faults(found, ()) if "not explained" in each]
        assert list(docs.faults(found, (OPEN,))) == []
        assert "[open: dropped](#dropped)" in docs.render(found, (OPEN,))

    def test_a_class_is_explained_when_each_of_its_findings_is(self, engine):
        record = swept(engine)
        refused, damaged = (
            Found(phase, "error", 2, (), 0.0, 0.0, 0.0, 0.0, f"ValueError: {phase}") for phase in ("export", "script")
        )
        [found] = record.classes
        two = dataclasses.replace(found, variant="with", shown=(refused, damaged), patches=())
        records.save(dataclasses.replace(record, classes=(found, two)))
        both = [Explanation(each.phase, Kind.DIAGNOSIS, "", phase=each.phase) for each in two.shown]
        assert list(docs.faults(records.load_all(), both)) == []
        page = docs.render(records.load_all(), both)
        assert "[diagnosis: export](#export), [diagnosis: script](#script) |" in page
        for one in both:
            faults = list(docs.faults(records.load_all(), [one]))
            assert [each for each in faults if "not explained" in each]
            assert f"explanation {one.id} explains nothing" in faults

    def test_an_error_is_shown_without_terminal_colours(self, engine):
        record = swept(engine)
        [found] = record.classes
        error = dataclasses.replace(WRONG, what="error", detail="UnpicklingError: \x1b[1mtrust\x1b[0m <it>")
        records.save(dataclasses.replace(record, classes=(dataclasses.replace(found, shown=(error,)),)))
        assert "| error: UnpicklingError: trust &lt;it> |" in docs.render(records.load_all(), ())

    @pytest.mark.parametrize(
        "other",
        [{"levels": {"stage": ("3",)}}, {"what": ("loss",)}, {"phase": "resume"}, {"releases": "<0.17"}],
        ids=lambda other: next(iter(other)),
    )
    def test_an_unrelated_explanation_explains_nothing(self, engine, other):
        engine.faulty = True
        swept(engine)
        faults = list(docs.faults(records.load_all(), (dataclasses.replace(OPEN, **other),)))
        assert any("not explained" in each for each in faults)
        assert any("dropped explains nothing" in each for each in faults)

    def test_an_unknown_patch_and_a_config_that_was_not_run_are_reported(self, engine, three, monkeypatch):
        swept(engine)
        monkeypatch.setattr(docs, "registry", SimpleNamespace(catalogue=dict))
        monkeypatch.setattr(covering, "load", lambda: [*three, space.complete({"clipping": "on"})])
        faults = list(docs.faults(records.load_all(), ()))
        assert any("fixes is not a patch" in each for each in faults)
        assert any("was not run without dsfix" in each for each in faults)
        assert any("was not run with dsfix" in each for each in faults)

    def test_a_release_is_run_with_all_schedules_or_with_none(self, engine, three, monkeypatch):
        swept(engine)
        late = [space.complete({"stage": stage, "schedule": "late"}) for stage in ("1", "2")]
        monkeypatch.setattr(covering, "load", lambda: [*three, *late])
        assert list(docs.faults(records.load_all(), ())) == []
        swept(engine, configs=[space.identify(late[0])])
        found = records.load_all()
        assert [each.partition(" was")[0] for each in docs.faults(found, ())] == [
            f"0.17.6: config {space.identify(late[1])}"
        ] * 2
        assert "| [0.17.6](#0176) | 4 | 1 |" in docs.render(found, ())


def test_the_committed_records_are_without_faults():
    found = records.load_all()
    assert list(docs.faults(found)) == []
